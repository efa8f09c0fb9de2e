//! `throng ddc`: maintenance of the folder of a derived-data cache that does not run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use throng_server::config::Loader;
use throng_server::ddc_tool::{self, Work};

use crate::keys;
use crate::output::{complain, print};

/// Exit code when something damaged was found.
const DAMAGED: u8 = 1;
/// Exit code when the work could not be done.
const FAILED: u8 = 2;

#[derive(Debug, Args)]
pub(crate) struct DdcArgs {
    /// Data folder of `throng up` (server.data)
    #[arg(long, value_name = "DIR", default_value = "throng-data", global = true)]
    data: PathBuf,
    #[command(subcommand)]
    work: WorkArgs,
}

#[derive(Debug, Subcommand)]
enum WorkArgs {
    /// Count refs and blobs of each namespace
    Stats,
    /// Read log, index and every blob and follow every ref without changes; exit 1 if something is
    /// damaged
    Verify,
    /// Rebuild the index from the log
    Reindex,
    /// Read every blob and quarantine damaged ones; exit 1 if there were any
    Scrub,
    /// Remove expired refs and unreferenced blobs
    Gc {
        /// Days without use after which a ref is removed; 0 keeps refs
        #[arg(long, value_name = "DAYS", default_value_t = 0)]
        unused_days: u32,
    },
    /// Put made-up blobs and refs, for `throng bench ddc start` and `memory`
    #[command(hide = true)]
    Fill {
        /// Blobs and refs
        entries: u64,
        /// Bytes of a blob, 8 or more
        #[arg(long, value_name = "BYTES", default_value_t = 8)]
        blob_bytes: usize,
    },
    /// Export everything to one file: what is in the folder, or in the bucket of which it holds
    /// copies; exit 1 if something could not be read
    Export {
        /// The file
        file: PathBuf,
        /// This namespace only
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// Configuration that names the bucket (ddc.tier.url) [default: throng.toml if it exists]
        #[arg(short, long, value_name = "FILE", env = "THRONG_CONFIG", hide_env = true)]
        config: Option<String>,
    },
    /// Decode Oodle blocks from standard input to standard output; the cache starts it
    #[cfg(feature = "oodle")]
    #[command(hide = true)]
    DecodeOodle,
    /// Import an exported file; every blob is hashed first
    Import {
        /// The file
        file: PathBuf,
    },
}

pub(crate) fn run(args: DdcArgs) -> ExitCode {
    let work = match args.work {
        WorkArgs::Stats => Work::Stats,
        WorkArgs::Verify => Work::Verify,
        WorkArgs::Reindex => Work::Reindex,
        WorkArgs::Scrub => Work::Scrub,
        WorkArgs::Gc { unused_days } => Work::Collect { unused_days },
        WorkArgs::Fill { entries, blob_bytes } => Work::Fill { entries, blob_bytes },
        WorkArgs::Export { file, namespace, config } => {
            match keys::with_surroundings(Loader::new(), config.as_deref()).load() {
                Ok(config) => Work::Export { file, namespace, settings: Some(Box::new(config.settings)) },
                Err(problems) => {
                    complain(&problems.to_string());
                    return ExitCode::from(FAILED);
                }
            }
        }
        #[cfg(feature = "oodle")]
        WorkArgs::DecodeOodle => return throng_oodle::run(),
        WorkArgs::Import { file } => Work::Import { file },
    };
    match ddc_tool::run(&args.data, &work) {
        Ok((found, is_well)) => {
            print(&format!("{found:#}\n"));
            if is_well { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) }
        }
        Err(why) => {
            complain(&format!("error: {why}"));
            ExitCode::from(FAILED)
        }
    }
}
