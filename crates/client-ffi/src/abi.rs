//! Numbers and structures of `include/throng.h`, which documents them; `tests/it/header.rs`
//! compares both.
#![allow(missing_docs, reason = "the header documents them, once")]

use std::ffi::c_char;

pub const THRONG_ABI_VERSION: u32 = 2;

pub const THRONG_OK: i32 = 0;
pub const THRONG_ERROR_ARGUMENT: i32 = -1;
pub const THRONG_ERROR_ENDPOINT: i32 = -2;
pub const THRONG_ERROR_CONNECT: i32 = -3;
pub const THRONG_ERROR_REFUSED: i32 = -4;
pub const THRONG_ERROR_NOT_CONNECTED: i32 = -5;
pub const THRONG_ERROR_QUEUE_FULL: i32 = -6;
pub const THRONG_ERROR_TOO_LARGE: i32 = -7;
pub const THRONG_ERROR_CLOSED: i32 = -8;
pub const THRONG_ERROR_INTERNAL: i32 = -9;
pub const THRONG_ERROR_ELSEWHERE: i32 = -10;

pub const THRONG_EVENT_AUTHENTICATED: u32 = 1;
pub const THRONG_EVENT_RECOVERED: u32 = 2;
pub const THRONG_EVENT_RECOVERY_END: u32 = 3;
pub const THRONG_EVENT_CREATED: u32 = 4;
pub const THRONG_EVENT_REMOVED: u32 = 5;
pub const THRONG_EVENT_LISTED: u32 = 6;
pub const THRONG_EVENT_LIST_END: u32 = 7;
pub const THRONG_EVENT_SUBSCRIBED: u32 = 8;
pub const THRONG_EVENT_UNSUBSCRIBED: u32 = 9;
pub const THRONG_EVENT_UPDATE: u32 = 10;
pub const THRONG_EVENT_MESSAGE: u32 = 11;
pub const THRONG_EVENT_PEER: u32 = 12;
pub const THRONG_EVENT_OWNER_LOST: u32 = 13;
pub const THRONG_EVENT_OWNER_RECOVERED: u32 = 14;
pub const THRONG_EVENT_REQUEST_FAILED: u32 = 15;
pub const THRONG_EVENT_DISCONNECTED: u32 = 16;
pub const THRONG_EVENT_OTHER: u32 = 17;
pub const THRONG_EVENT_MATCHMAKING: u32 = 18;
pub const THRONG_EVENT_NOTICE: u32 = 19;
pub const THRONG_EVENT_MATCHED: u32 = 20;
pub const THRONG_EVENT_UNMATCHED: u32 = 21;

pub const THRONG_CLIENT: u32 = 0;
pub const THRONG_SERVER: u32 = 1;

#[repr(C)]
pub struct ThrongOptions {
    pub size: usize,
    pub endpoint: *const c_char,
    pub pit: *const c_char,
    pub login_token: *const c_char,
    pub ca_pem: *const c_char,
    pub kind: u32,
    pub reconnects: u32,
    pub world: *const c_char,
}

#[repr(C)]
pub struct ThrongSubscription {
    pub size: usize,
    pub access: u32,
    pub interval_ms: u32,
    pub receive_own: u32,
    pub skip_first: u32,
}

#[repr(C)]
pub struct ThrongCreate {
    pub size: usize,
    pub channel_type: u32,
    pub metadata: *const c_char,
    pub data_type: *const c_char,
    pub data: *const u8,
    pub data_size: usize,
    pub list_size_limit: u32,
    pub truncate_top: u32,
    pub replace_list: u32,
    pub check_removable: u32,
    pub subscription: ThrongSubscription,
}

#[repr(C)]
pub struct ThrongEvent {
    pub kind: u32,
    pub request: u32,
    pub channel: u32,
    pub channel_type: u32,
    pub conn: u32,
    pub msg_type: u32,
    pub broadcast: u32,
    pub code: u32,
    pub flag: u32,
    pub text: *const c_char,
    pub data: *const u8,
    pub data_size: usize,
}
