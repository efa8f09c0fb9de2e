//! Work that represents another machine and must not take processor time from the measured program.

/// Gives the calling thread the lowest priority, even if the bench itself runs under a real-time
/// policy. If the system refuses, the thread's priority is unchanged.
#[allow(unsafe_code)]
pub(crate) fn enter() {
    // SAFETY: the structure is plain numbers, for which zeros are valid: priority 0, which this
    // policy wants.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: both calls concern the calling thread (0) alone; the pointer is valid for the
    // duration of the call.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters);
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE_MAX);
    }
}

/// The kindest that a thread can be.
const NICE_MAX: libc::c_int = 19;
