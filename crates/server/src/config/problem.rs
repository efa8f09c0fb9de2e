//! Problems of a configuration, with their position and a way out.

use std::fmt;

/// Origin of a value, in ascending precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// The defaults of a subcommand, such as `throng channeld`.
    Command(&'static str),
    /// A line of a file.
    File {
        /// The file as it was named.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
    },
    /// An environment variable, by name.
    Env(String),
    /// A flag as the user wrote it.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::Command(name) => write!(f, "default of `throng {name}`"),
            Origin::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Origin::Env(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The kinds of problem; each has a code for `throng explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The file cannot be read.
    Unreadable,
    /// The file is not TOML.
    Syntax,
    /// A key or section that does not exist.
    UnknownKey,
    /// A value of the wrong type or outside its range.
    BadValue,
    /// Values that do not go together.
    Conflict,
    /// An address that would let strangers in.
    UnsafeBind,
    /// A file that a value names is missing or wrong.
    BadReference,
    /// The matcher's file of modes and queues says what cannot be.
    BadRules,
}

impl ProblemKind {
    /// The catalogue code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            ProblemKind::Unreadable => "THR-0101",
            ProblemKind::Syntax => "THR-0102",
            ProblemKind::UnknownKey => "THR-0103",
            ProblemKind::BadValue => "THR-0104",
            ProblemKind::Conflict => "THR-0105",
            ProblemKind::UnsafeBind => "THR-0106",
            ProblemKind::BadReference => "THR-0107",
            ProblemKind::BadRules => "THR-0108",
        }
    }
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the problem.
    pub kind: ProblemKind,
    /// Description of the problem, lower case, no full stop.
    pub message: String,
    /// Position of the offending value or key.
    pub origin: Origin,
    /// The source line, for problems in a file.
    pub source_line: Option<String>,
    /// Length of the offending text in characters, to underline it.
    pub width: usize,
    /// Allowed values and ways out, one entry a line.
    pub notes: Vec<String>,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, origin: Origin, message: impl Into<String>) -> Problem {
        Problem { kind, message: message.into(), origin, source_line: None, width: 1, notes: Vec::new() }
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Problem {
        self.notes.push(note.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}\n  --> {}", self.kind.code(), self.message, self.origin)?;
        if let (Origin::File { line, column, .. }, Some(source)) = (&self.origin, &self.source_line) {
            let gutter = line.to_string().len();
            let before: String =
                source.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            write!(f, "\n{:gutter$} |", "")?;
            write!(f, "\n{line} | {source}")?;
            write!(f, "\n{:gutter$} | {before}{}", "", "^".repeat(self.width.max(1)))?;
        }
        for note in &self.notes {
            write!(f, "\n   = {note}")?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{problem}\n")?;
        }
        match self.0.len() {
            1 => write!(f, "1 problem found"),
            count => write!(f, "{count} problems found"),
        }
    }
}

impl std::error::Error for Problems {}
