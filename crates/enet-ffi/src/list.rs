//! The doubly linked lists that the C library exports, rings through a sentinel.

use crate::abi::{ENetList, ENetListNode};

/// # Safety
/// `list` points to a list, or to memory for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_list_clear(list: *mut ENetList) {
    // SAFETY: the caller's promise; only addresses are taken and stored.
    unsafe {
        let sentinel = &raw mut (*list).sentinel;
        (*sentinel).next = sentinel;
        (*sentinel).previous = sentinel;
    }
}

/// # Safety
/// `position` is a node of a list; `data` begins with a node that is in none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_list_insert(
    position: *mut ENetListNode,
    data: *mut ENetListNode,
) -> *mut ENetListNode {
    // SAFETY: the caller's promise: all nodes of a ring are valid.
    unsafe {
        (*data).previous = (*position).previous;
        (*data).next = position;
        (*(*data).previous).next = data;
        (*position).previous = data;
    }
    data
}

/// # Safety
/// `position` is a node of a list and not its sentinel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_list_remove(position: *mut ENetListNode) -> *mut ENetListNode {
    // SAFETY: the caller's promise.
    unsafe {
        (*(*position).previous).next = (*position).next;
        (*(*position).next).previous = (*position).previous;
    }
    position
}

/// # Safety
/// `first` to `last` are a part of a list that does not contain `position`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_list_move(
    position: *mut ENetListNode,
    first: *mut ENetListNode,
    last: *mut ENetListNode,
) -> *mut ENetListNode {
    // SAFETY: the caller's promise.
    unsafe {
        (*(*first).previous).next = (*last).next;
        (*(*last).next).previous = (*first).previous;
        (*first).previous = (*position).previous;
        (*last).next = position;
        (*(*first).previous).next = first;
        (*position).previous = last;
    }
    first
}

/// # Safety
/// `list` points to a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_list_size(list: *mut ENetList) -> usize {
    let mut size = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let end = &raw mut (*list).sentinel;
        let mut node = (*end).next;
        while node != end {
            size += 1;
            node = (*node).next;
        }
    }
    size
}
