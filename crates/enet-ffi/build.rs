//! Gives the library the name by which programs were linked with the C library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libenet.so.7");
    println!("cargo:rerun-if-changed=build.rs");
}
