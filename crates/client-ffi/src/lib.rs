//! C interface of [`throng_client`]: `include/throng.h` documents it.
//!
//! A handle owns a tokio runtime of one thread, on which the connection runs; every function hands
//! it a command and waits until it is taken, which is microseconds. Nothing here knows the
//! protocol.
//!
//! # Safety
//!
//! Pointers come from C, so each exported function trusts what the header asks of its caller:
//! pointers are null where that is allowed or else valid, structures are as large as their `size`
//! says, texts end with a zero byte, and a client is not used after `throng_close`. What can be
//! checked is: null, sizes, UTF-8. No panic crosses the border.

mod abi;
mod event;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use throng_client::{
    Access, Backoff, ChannelId, ChannelType, Client, CloseReason, ConnId, ConnectError, CreateChannel,
    Endpoint, Events, MatchmakingRequest, MergeOptions, RequestError, RequestId, SendError, SessionConfig,
    SubscribeOptions, tls_trusting,
};
use tokio::runtime::{Builder, Runtime};

pub use abi::*;
use event::Inbox;

/// A connection, behind the pointer that C holds.
pub struct ThrongClient {
    runtime: Runtime,
    client: Client,
    inbox: Mutex<(Events, Inbox)>,
    /// Connection id, as of the latest polled event.
    conn: AtomicU32,
}

/// A result code with what goes into `throng_error`.
struct Failure(i32, String);

impl Failure {
    fn argument(what: &str) -> Self {
        Failure(THRONG_ERROR_ARGUMENT, what.to_owned())
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        let code = match &error {
            RequestError::Send(SendError::NotConnected) => THRONG_ERROR_NOT_CONNECTED,
            RequestError::Send(SendError::QueueFull { .. } | SendError::TooManyRequests(_)) => {
                THRONG_ERROR_QUEUE_FULL
            }
            RequestError::Send(SendError::TooLarge { .. }) => THRONG_ERROR_TOO_LARGE,
            RequestError::Closed => THRONG_ERROR_CLOSED,
            _ => THRONG_ERROR_INTERNAL,
        };
        Failure(code, error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function and converts an error or a panic to a code and a message.
fn run(body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(Failure(THRONG_ERROR_INTERNAL, "the library panicked".to_owned())));
    let Failure(code, text) = match outcome {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.set(text);
    code
}

/// `THRONG_ABI_VERSION` of this library.
#[unsafe(no_mangle)]
pub extern "C" fn throng_abi_version() -> u32 {
    THRONG_ABI_VERSION
}

/// Text of the last failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn throng_error() -> *const c_char {
    // The text stays where it is until the next failure on this thread.
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Connects and logs in.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_connect(options: *const ThrongOptions, out: *mut *mut ThrongClient) -> i32 {
    run(|| {
        if out.is_null() {
            return Err(Failure::argument("client is NULL"));
        }
        // SAFETY: not null, and by contract valid for a pointer.
        unsafe { out.write(ptr::null_mut()) };
        // SAFETY: by contract null or valid for its size.
        let options = unsafe { options_of(options) }?;
        // SAFETY: by contract texts are null or end with a zero byte.
        let client = unsafe { connect(&options) }?;
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(client))) };
        Ok(THRONG_OK)
    })
}

/// Waits for the next event.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_poll(
    client: *mut ThrongClient,
    timeout_ms: u32,
    out: *mut ThrongEvent,
) -> i32 {
    run(|| {
        // SAFETY: by contract null or a live client.
        let client = unsafe { live(client) }?;
        if out.is_null() {
            return Err(Failure::argument("event is NULL"));
        }
        // A panic while it was held has been reported as such; the inbox is still an inbox.
        let mut inbox = client.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let (events, inbox) = &mut *inbox;
        if inbox.is_empty() {
            let next =
                async { tokio::time::timeout(Duration::from_millis(timeout_ms.into()), events.next()).await };
            match client.runtime.block_on(next) {
                Ok(Some(event)) => inbox.take(event),
                Ok(None) => return Err(Failure(THRONG_ERROR_CLOSED, "the connection has ended".to_owned())),
                Err(_) => return Ok(0),
            }
        }
        let Some(event) = inbox.next() else { return Ok(0) };
        if event.kind == THRONG_EVENT_AUTHENTICATED {
            client.conn.store(event.conn, Ordering::Relaxed);
        }
        // SAFETY: not null, and by contract valid for an event.
        unsafe { out.write(event) };
        Ok(1)
    })
}

/// Id of the connection.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_conn(client: *const ThrongClient) -> u32 {
    // SAFETY: by contract null or a live client.
    unsafe { live(client) }.map_or(0, |client| client.conn.load(Ordering::Relaxed))
}

/// Lists channels.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_list(
    client: *const ThrongClient,
    channel_type: u32,
    metadata: *const c_char,
    request: *mut u32,
) -> i32 {
    run(|| {
        // SAFETY: by contract null or a zero-terminated text.
        let filters: Vec<String> = match unsafe { text(metadata, "metadata") }? {
            "" => Vec::new(),
            filter => vec![filter.to_owned()],
        };
        let channel_type = (channel_type != 0).then_some(ChannelType(channel_type));
        // SAFETY: by contract null or valid.
        unsafe { submit(client, request, move |s, now| s.list_channels(now, channel_type, &filters)) }
    })
}

/// Creates a channel.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_create_channel(
    client: *const ThrongClient,
    create: *const ThrongCreate,
    request: *mut u32,
) -> i32 {
    run(|| {
        // SAFETY: by contract null or valid.
        let given = unsafe { sized(create, |create| create.size) }?;
        let mut create = CreateChannel::new(ChannelType(given.channel_type))
            // SAFETY: by contract null or a zero-terminated text.
            .metadata(unsafe { text(given.metadata, "metadata") }?)
            .merge(MergeOptions {
                replace_list: given.replace_list != 0,
                list_size_limit: given.list_size_limit,
                truncate_top: given.truncate_top != 0,
                check_removable: given.check_removable != 0,
            });
        if given.subscription.size != 0 {
            // SAFETY: a reference is valid.
            create = create.options(unsafe { subscription(&raw const given.subscription) }?);
        }
        // SAFETY: by contract null or a zero-terminated text.
        let data_type = unsafe { text(given.data_type, "data_type") }?;
        if !data_type.is_empty() {
            // SAFETY: by contract valid for the size.
            create = create.data(data_type, unsafe { bytes(given.data, given.data_size) }?);
        }
        // SAFETY: by contract null or valid.
        unsafe { submit(client, request, move |s, now| s.create_channel(now, &create)) }
    })
}

/// Removes a channel.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_remove_channel(
    client: *const ThrongClient,
    channel: u32,
    request: *mut u32,
) -> i32 {
    // SAFETY: by contract null or valid.
    run(|| unsafe { submit(client, request, move |s, now| s.remove_channel(now, ChannelId(channel))) })
}

/// Subscribes a connection.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_subscribe(
    client: *const ThrongClient,
    channel: u32,
    conn: u32,
    options: *const ThrongSubscription,
    request: *mut u32,
) -> i32 {
    run(|| {
        let options = if options.is_null() {
            SubscribeOptions::default()
        } else {
            // SAFETY: not null, so valid by contract.
            unsafe { subscription(options) }?
        };
        let operation = move |s: &mut throng_client::Session, now| {
            s.subscribe(now, ChannelId(channel), other(conn), &options)
        };
        // SAFETY: by contract null or valid.
        unsafe { submit(client, request, operation) }
    })
}

/// Ends a subscription.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_unsubscribe(
    client: *const ThrongClient,
    channel: u32,
    conn: u32,
    request: *mut u32,
) -> i32 {
    let operation =
        move |s: &mut throng_client::Session, now| s.unsubscribe(now, ChannelId(channel), other(conn));
    // SAFETY: by contract null or valid.
    run(|| unsafe { submit(client, request, operation) })
}

/// Sends an update.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_update(
    client: *const ThrongClient,
    channel: u32,
    data_type: *const c_char,
    data: *const u8,
    size: usize,
) -> i32 {
    run(|| {
        // SAFETY: by contract a zero-terminated text, and bytes valid for the size.
        let (name, value) = unsafe { (text(data_type, "data_type")?.to_owned(), bytes(data, size)?) };
        // SAFETY: by contract null or a live client.
        unsafe { tell(client, move |s| s.update(ChannelId(channel), &name, &value)) }
    })
}

/// Sends a message to the owner of a channel.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_send(
    client: *const ThrongClient,
    channel: u32,
    msg_type: u32,
    data: *const u8,
    size: usize,
) -> i32 {
    run(|| {
        // SAFETY: by contract valid for the size.
        let payload = unsafe { bytes(data, size) }?;
        // SAFETY: by contract null or a live client.
        unsafe { tell(client, move |s| s.send(ChannelId(channel), msg_type, &payload)) }
    })
}

/// Sends a message as a server.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_forward(
    client: *const ThrongClient,
    channel: u32,
    broadcast: u32,
    msg_type: u32,
    conn: u32,
    data: *const u8,
    size: usize,
) -> i32 {
    run(|| {
        // SAFETY: by contract valid for the size.
        let payload = unsafe { bytes(data, size) }?;
        let operation = move |s: &mut throng_client::Session| {
            s.forward(ChannelId(channel), broadcast, msg_type, ConnId(conn), &payload)
        };
        // SAFETY: by contract null or a live client.
        unsafe { tell(client, operation) }
    })
}

/// Joins a room of a mode.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_join_random_room(
    client: *const ThrongClient,
    mode: *const c_char,
    request: *mut u32,
) -> i32 {
    run(|| {
        // SAFETY: by contract null or a zero-terminated text.
        let ask = MatchmakingRequest::join_random_room(unsafe { text(mode, "mode") }?);
        // SAFETY: by contract null or valid.
        unsafe { submit(client, request, move |s, now| s.matchmake(now, &ask)) }
    })
}

/// Queues for a match.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_join_queue(
    client: *const ThrongClient,
    queue: *const c_char,
    request: *mut u32,
) -> i32 {
    run(|| {
        // SAFETY: by contract null or a zero-terminated text.
        let ask = MatchmakingRequest::join_queue(unsafe { text(queue, "queue") }?);
        // SAFETY: by contract null or valid.
        unsafe { submit(client, request, move |s, now| s.matchmake(now, &ask)) }
    })
}

/// Calls a method of the matcher behind the gateway.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_matchmake(
    client: *const ThrongClient,
    method: u16,
    data: *const u8,
    size: usize,
    request: *mut u32,
) -> i32 {
    run(|| {
        // SAFETY: by contract valid for the size.
        let ask = MatchmakingRequest { method, body: unsafe { bytes(data, size) }? };
        // SAFETY: by contract null or valid.
        unsafe { submit(client, request, move |s, now| s.matchmake(now, &ask)) }
    })
}

/// Asks the gateway to close another connection.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_disconnect(client: *const ThrongClient, conn: u32) -> i32 {
    // SAFETY: by contract null or a live client.
    run(|| unsafe { tell(client, move |s| s.disconnect(ConnId(conn))) })
}

/// Ends the connection and frees the client. The player leaves: its seats in rooms, queues and
/// channels are freed at once.
///
/// # Safety
/// See the [crate](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn throng_close(client: *mut ThrongClient) {
    if client.is_null() {
        return;
    }
    run(|| {
        // SAFETY: by contract from throng_connect and not closed before.
        let ThrongClient { runtime, client, inbox, .. } = *unsafe { Box::from_raw(client) };
        let (mut events, _) = inbox.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Queued bytes are written before the events end; a peer that does not read is not waited
        // for.
        let farewell = async {
            client.close().await;
            while events.next().await.is_some() {}
        };
        // Either way the client is gone afterwards.
        let _ = runtime.block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, farewell).await });
        runtime.shutdown_timeout(CLOSE_TIMEOUT);
        Ok(THRONG_OK)
    });
}

/// Longest time that a closure may take to send the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Options of this version from those of a caller that may know fewer.
///
/// # Safety
/// `options` is null or valid for the size that it says.
unsafe fn options_of(options: *const ThrongOptions) -> Result<ThrongOptions, Failure> {
    if options.is_null() {
        return Err(Failure::argument("a structure is NULL"));
    }
    // SAFETY: the size comes first and is always there.
    let size = unsafe { (&raw const (*options).size).read() };
    if size < offset_of!(ThrongOptions, world) {
        return Err(Failure::argument("the size of a structure is not set"));
    }
    let mut all = MaybeUninit::<ThrongOptions>::zeroed();
    let size = size.min(size_of::<ThrongOptions>());
    // SAFETY: both are valid for that size, and what is not copied is null.
    unsafe {
        ptr::copy_nonoverlapping(options.cast::<u8>(), all.as_mut_ptr().cast::<u8>(), size);
        Ok(all.assume_init())
    }
}

/// # Safety
/// The texts are null or end with a zero byte.
unsafe fn connect(options: &ThrongOptions) -> Result<ThrongClient, Failure> {
    // SAFETY: the caller's contract.
    let [endpoint, pit, login_token, ca_pem, world] = unsafe {
        [
            text(options.endpoint, "endpoint")?,
            text(options.pit, "pit")?,
            text(options.login_token, "login_token")?,
            text(options.ca_pem, "ca_pem")?,
            text(options.world, "world")?,
        ]
    };
    let wrong = |what: String| Failure(THRONG_ERROR_ENDPOINT, what);
    let mut endpoint: Endpoint = endpoint.parse().map_err(|error| wrong(format!("{error}")))?;
    if !ca_pem.is_empty() {
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(ca_pem.as_bytes()).collect();
        let roots = roots.map_err(|error| wrong(format!("ca_pem: {error}")))?;
        endpoint = endpoint.with_tls(tls_trusting(roots).map_err(|error| wrong(format!("ca_pem: {error}")))?);
    }
    let config = match options.kind {
        THRONG_CLIENT => SessionConfig { resume: true, ..SessionConfig::client(pit, login_token) },
        THRONG_SERVER => SessionConfig::server(pit, login_token),
        other => return Err(Failure::argument(&format!("kind {other} is neither client nor server"))),
    };
    let config = SessionConfig { world: (!world.is_empty()).then(|| world.to_owned()), ..config };
    let backoff = match options.reconnects {
        0 => Backoff::default(),
        u32::MAX => Backoff::never(),
        attempts => Backoff { attempts: Some(attempts), ..Backoff::default() },
    };
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("throng").enable_all().build();
    let runtime = runtime.map_err(|error| Failure(THRONG_ERROR_INTERNAL, format!("no thread: {error}")))?;
    let connected = runtime.block_on(Client::connect_with(endpoint, config, backoff));
    let (client, events) = connected.map_err(|error| {
        let code = match &error {
            ConnectError::Refused(_) => THRONG_ERROR_REFUSED,
            ConnectError::Closed(CloseReason::Elsewhere { .. }) => THRONG_ERROR_ELSEWHERE,
            _ => THRONG_ERROR_CONNECT,
        };
        Failure(code, error.to_string())
    })?;
    let conn = AtomicU32::new(client.conn().0);
    Ok(ThrongClient { runtime, client, inbox: Mutex::new((events, Inbox::default())), conn })
}

/// # Safety
/// `client` is null or a live client, `request` null or valid for a number.
unsafe fn submit(
    client: *const ThrongClient,
    request: *mut u32,
    operation: impl FnOnce(&mut throng_client::Session, Now) -> Result<RequestId, SendError> + Send + 'static,
) -> Result<i32, Failure> {
    // SAFETY: the caller's contract.
    let client = unsafe { live(client) }?;
    let id = client.runtime.block_on(client.client.submit(operation))?;
    if !request.is_null() {
        // SAFETY: not null, and valid by the caller's contract.
        unsafe { request.write(id.0) };
    }
    Ok(THRONG_OK)
}

/// The session's clock.
type Now = throng_client::Instant;

/// # Safety
/// `client` is null or a live client.
unsafe fn tell(
    client: *const ThrongClient,
    operation: impl FnOnce(&mut throng_client::Session) -> Result<(), SendError> + Send + 'static,
) -> Result<i32, Failure> {
    // SAFETY: the caller's contract.
    let client = unsafe { live(client) }?;
    client.runtime.block_on(client.client.tell(operation))?;
    Ok(THRONG_OK)
}

/// # Safety
/// `client` is null or a live client, for as long as the result is used.
unsafe fn live<'a>(client: *const ThrongClient) -> Result<&'a ThrongClient, Failure> {
    // SAFETY: the caller's contract.
    unsafe { client.as_ref() }.ok_or_else(|| Failure::argument("client is NULL"))
}

/// Returns a structure whose size the caller states. A smaller size would mean an older header;
/// none exists yet.
///
/// # Safety
/// `pointer` is null or valid, for as long as the result is used.
unsafe fn sized<'a, T>(pointer: *const T, size: impl Fn(&T) -> usize) -> Result<&'a T, Failure> {
    // SAFETY: the caller's contract.
    let value = unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument("a structure is NULL"))?;
    if size(value) < size_of::<T>() {
        return Err(Failure::argument("the size of a structure is not set"));
    }
    Ok(value)
}

/// # Safety
/// `options` is valid.
unsafe fn subscription(options: *const ThrongSubscription) -> Result<SubscribeOptions, Failure> {
    // SAFETY: the caller's contract.
    let given = unsafe { sized(options, |options| options.size) }?;
    let access = match given.access {
        0 => None,
        1 => Some(Access::None),
        2 => Some(Access::Read),
        3 => Some(Access::Write),
        other => return Err(Failure::argument(&format!("access {other}"))),
    };
    Ok(SubscribeOptions {
        access,
        fan_out_interval: (given.interval_ms != 0).then(|| Duration::from_millis(given.interval_ms.into())),
        skip_self: (given.receive_own != 0).then_some(false),
        skip_first: (given.skip_first != 0).then_some(true),
        ..SubscribeOptions::default()
    })
}

fn other(conn: u32) -> Option<ConnId> {
    (conn != 0).then_some(ConnId(conn))
}

/// # Safety
/// `pointer` is null or a text that ends with a zero byte, for as long as the result is used.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Ok("");
    }
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(&format!("{what} is not UTF-8")))
}

/// # Safety
/// `data` is null or valid for `size` bytes.
unsafe fn bytes(data: *const u8, size: usize) -> Result<Bytes, Failure> {
    if size == 0 {
        return Ok(Bytes::new());
    }
    if data.is_null() || size > isize::MAX.unsigned_abs() {
        return Err(Failure::argument("data is NULL"));
    }
    // SAFETY: not null, and valid for the size by the caller's contract.
    Ok(Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(data, size) }))
}
