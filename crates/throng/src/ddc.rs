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

const REINDEX_HELP: &str = "\
A gap is a damaged or missing part of the log. The keys that it held are missing
until they are put again. Every start, `verify` and `export` report a gap until
`reindex` has rebuilt the index without it, which acknowledges it. Times of last
use are in the index only: afterwards a ref counts as used when it was put.

Exit codes:
  0  the log has no gap that was not acknowledged before
  1  the index is rebuilt; gaps (log_gaps) are acknowledged from now on
  2  the index could not be rebuilt; repeat the command";
const EXPORT_HELP: &str = "\
A damaged blob or ref is left out, counted as `unreadable` and named in
`unreadable_names`. The keys of a gap of the log (log_gaps) are not in the export
either. The export is written to FILE.partial and renamed when it is complete:
until then an earlier FILE stays, and a failed export removes FILE.partial.
Pipes and devices are written to directly.

Exit codes:
  0  everything is in the export
  1  the export is complete but for what is named (unreadable, log_gaps)
  2  there is no new export";

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
    /// Rebuild the index from the log; exit 1 for gaps of the log, which it acknowledges
    #[command(after_help = REINDEX_HELP)]
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
    #[command(after_help = EXPORT_HELP)]
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
    /// Import an exported file but for refs that are newer here; every blob is hashed first
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
