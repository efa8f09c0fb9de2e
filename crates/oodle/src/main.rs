//! A program that decodes blocks of Oodle: `ddc.oodle_decoder = ["throng-oodle"]`.

fn main() -> std::process::ExitCode {
    throng_oodle::run()
}
