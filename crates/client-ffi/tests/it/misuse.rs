//! Mistakes of C callers are errors with texts, not crashes.

use std::ffi::{CStr, CString, c_char};
use std::mem::offset_of;
use std::ptr;

use throng_client_ffi::*;

/// Text of the failed call.
fn failed(code: i32, expected: i32) -> String {
    assert_eq!(code, expected);
    // SAFETY: a text that lives until the next call.
    unsafe { CStr::from_ptr(throng_error()) }.to_str().expect("UTF-8").to_owned()
}

fn options(endpoint: *const c_char) -> ThrongOptions {
    ThrongOptions {
        size: size_of::<ThrongOptions>(),
        endpoint,
        pit: ptr::null(),
        login_token: ptr::null(),
        ca_pem: ptr::null(),
        kind: THRONG_CLIENT,
        reconnects: 0,
        world: ptr::null(),
    }
}

#[test]
fn null_sizes_and_endpoints_are_checked() {
    let mut client: *mut ThrongClient = ptr::null_mut();
    let endpoint = CString::new("nowhere").expect("text");
    let bad_text = CString::new([0xff]).expect("no zero byte");
    // SAFETY: every pointer is null, or valid for the call.
    unsafe {
        assert_eq!(throng_abi_version(), THRONG_ABI_VERSION);
        assert!(failed(throng_connect(ptr::null(), &raw mut client), THRONG_ERROR_ARGUMENT).contains("NULL"));
        let good = options(endpoint.as_ptr());
        assert!(failed(throng_connect(&good, ptr::null_mut()), THRONG_ERROR_ARGUMENT).contains("NULL"));
        assert!(failed(throng_connect(&good, &raw mut client), THRONG_ERROR_ENDPOINT).contains("nowhere"));
        let no_size = ThrongOptions { size: 0, ..options(endpoint.as_ptr()) };
        assert!(failed(throng_connect(&no_size, &raw mut client), THRONG_ERROR_ARGUMENT).contains("size"));
        let not_text = options(bad_text.as_ptr());
        assert!(failed(throng_connect(&not_text, &raw mut client), THRONG_ERROR_ARGUMENT).contains("UTF-8"));
        let closed = CString::new("127.0.0.1:1").expect("text");
        assert!(
            failed(throng_connect(&options(closed.as_ptr()), &raw mut client), THRONG_ERROR_CONNECT)
                .contains("127.0.0.1:1")
        );
        let secret = CString::new("tls://127.0.0.1:1").expect("text");
        assert!(
            failed(throng_connect(&options(secret.as_ptr()), &raw mut client), THRONG_ERROR_CONNECT)
                .contains("tls://127.0.0.1:1")
        );
        // Of an older caller, what its structure does not have is not read.
        let older = ThrongOptions {
            size: offset_of!(ThrongOptions, world),
            world: bad_text.as_ptr(),
            ..options(closed.as_ptr())
        };
        failed(throng_connect(&older, &raw mut client), THRONG_ERROR_CONNECT);
        let not_text = ThrongOptions { world: bad_text.as_ptr(), ..options(closed.as_ptr()) };
        assert!(failed(throng_connect(&not_text, &raw mut client), THRONG_ERROR_ARGUMENT).contains("world"));
        let wrong_kind = ThrongOptions { kind: 7, ..options(closed.as_ptr()) };
        failed(throng_connect(&wrong_kind, &raw mut client), THRONG_ERROR_ARGUMENT);
        assert!(client.is_null());

        failed(throng_poll(client, 0, ptr::null_mut()), THRONG_ERROR_ARGUMENT);
        failed(throng_list(client, 0, ptr::null(), ptr::null_mut()), THRONG_ERROR_ARGUMENT);
        failed(throng_create_channel(client, ptr::null(), ptr::null_mut()), THRONG_ERROR_ARGUMENT);
        failed(throng_subscribe(client, 1, 0, ptr::null(), ptr::null_mut()), THRONG_ERROR_ARGUMENT);
        failed(throng_send(client, 1, 100, ptr::null(), 4), THRONG_ERROR_ARGUMENT);
        failed(throng_disconnect(client, 1), THRONG_ERROR_ARGUMENT);
        assert_eq!(throng_conn(client), 0);
        throng_close(client);
    }
}
