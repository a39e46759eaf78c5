//! Logging options for the long-running roles; [`Log::start`] begins to log to stderr.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::failure::{Exit, Failure};

/// Level and format of the log.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// Log level: error, warn, info, debug, trace, or a filter per module as in RUST_LOG
    #[arg(long, env = "WEFT_LOG", default_value = "info", value_name = "LEVEL")]
    log: String,
    /// Log format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people
    Text,
    /// One JSON object per line
    Json,
}

impl Log {
    /// Starts to log to stderr. Must be called once, before the first log line.
    ///
    /// # Errors
    /// `--log` is not a valid filter.
    pub fn start(&self) -> Result<(), Failure> {
        let Log { log: level, log_format } = self;
        let filter = EnvFilter::try_new(level)
            .map_err(|cause| Failure::new(format!("--log {level}: {cause}")).exit(Exit::Usage))?;
        // The kube library logs each failed attempt as an error; weft logs only the outcome, once.
        let library = (!level.contains("kube")).then(|| "kube_client::client=off".parse().ok()).flatten();
        let filter = library.into_iter().fold(filter, EnvFilter::add_directive);
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match log_format {
            LogFormat::Text => log.with_ansi(false).init(),
            LogFormat::Json => log.json().init(),
        }
        Ok(())
    }
}
