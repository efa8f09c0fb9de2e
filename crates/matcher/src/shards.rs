//! All shards of a matcher, and the mail that is on its way between them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::claims::Mail;
use crate::config::{Caller, Config};
use crate::matcher::{BadSnapshot, Matcher};
use crate::notices::Notices;
use crate::policy::{Handled, Verdict};
use crate::record::Input;
use crate::shard::{SHARDS_MAX, Shard};

/// The shards of one matcher. What it does is a function of its inputs in order, each of which says its shard: mail is
/// delivered by an input too, which names the sender and nothing else. So a log of inputs replayed gives the identical
/// shards *and* the identical mail on its way.
///
/// With one shard it is a [`Matcher`] that never has mail.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<Matcher>,
    /// By sender, then by receiver.
    mail: Vec<VecDeque<Mail>>,
}

/// First bytes of a snapshot of several shards.
const SNAPSHOT_MAGIC: &[u8] = b"throng-shards-3\n";

#[derive(Serialize)]
struct Written<'a> {
    shards: Vec<Vec<u8>>,
    mail: &'a [VecDeque<Mail>],
}

#[derive(Deserialize)]
struct Read {
    shards: Vec<Vec<u8>>,
    mail: Vec<VecDeque<Mail>>,
}

impl Shards {
    /// An empty matcher of `count` shards, 1 to [`SHARDS_MAX`]; see [`Matcher::new`].
    #[must_use]
    pub fn new(config: &Config, secret: [u8; 32], now: u64, count: u16) -> Shards {
        let count = count.clamp(1, SHARDS_MAX);
        let shard = |index| Matcher::new_shard(config.clone(), secret, now, Shard { index, count });
        Shards::of((0..count).map(shard).collect())
    }

    fn of(shards: Vec<Matcher>) -> Shards {
        let pairs = shards.len() * shards.len();
        Shards { shards, mail: (0..pairs).map(|_| VecDeque::new()).collect() }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.shards.len() as u16
    }

    /// One of them.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn shard(&self, index: u16) -> &Matcher {
        &self.shards[usize::from(index)]
    }

    /// The same, for what its answers and notices need. Its inputs come by [`apply`](Shards::apply).
    ///
    /// # Panics
    /// When there are not so many.
    pub fn shard_mut(&mut self, index: u16) -> &mut Matcher {
        &mut self.shards[usize::from(index)]
    }

    /// Senders and receivers between which mail is on its way.
    pub fn pending(&self) -> impl Iterator<Item = (u16, u16)> {
        let count = self.shards.len();
        let waits = self.mail.iter().enumerate().filter(|(_, mail)| !mail.is_empty());
        waits.map(move |(pair, _)| ((pair / count) as u16, (pair % count) as u16))
    }

    /// Gives a shard an input. The status of a request; `None` for others. An input of a shard that is not there, or of mail
    /// that is not there, does nothing.
    pub fn apply(
        &mut self,
        shard: u16,
        now: u64,
        input: Input<'_>,
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Option<Handled> {
        let count = self.shards.len();
        let matcher = self.shards.get_mut(usize::from(shard))?;
        let mut handled = None;
        match input {
            Input::Begin { .. } | Input::Durable(_) | Input::Configure(_) => {}
            Input::Request { srv, scope, method, body } => {
                let caller = Caller { srv, scope };
                handled = Some(matcher.handle(now, caller, method, body, answer, notices));
            }
            Input::Session { srv, up } => {
                matcher.handle_session(now, srv, up, notices);
            }
            Input::Timeout => matcher.handle_timeout(now, notices),
            Input::Recovered => matcher.handle_recovered(now, notices),
            Input::Verdict { id, verdict } => {
                matcher.handle_verdict(now, id, verdict.and_then(Verdict::parse).as_ref(), notices);
            }
            Input::Mail { from } => {
                let pair = usize::from(from) * count + usize::from(shard);
                let mail = self.mail.get_mut(pair).and_then(VecDeque::pop_front)?;
                matcher.handle_mail(now, u16::from(from), mail, notices);
            }
        }
        while let Some((to, mail)) = matcher.poll_mail() {
            self.mail[usize::from(shard) * count + usize::from(to)].push_back(mail);
        }
        handled
    }

    /// Applies changed rules of modes to all of them; see [`Matcher::reconfigure`].
    pub fn reconfigure(&mut self, config: &Config) {
        self.shards.iter_mut().for_each(|shard| shard.reconfigure(config.clone()));
    }

    /// The latest time that any of them has reached.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.shards.iter().map(Matcher::now).max().unwrap_or(0)
    }

    /// Everything that outlives the process; with one shard that of the [`Matcher`].
    ///
    /// # Panics
    /// When memory for it cannot be had.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        if let [alone] = &self.shards[..] {
            return alone.snapshot();
        }
        Shards::join(self.shards.iter().map(Matcher::snapshot).collect(), &self.mail)
    }

    /// The snapshot of shards that are elsewhere, and of the mail between them by sender and receiver.
    ///
    /// # Panics
    /// When memory for it cannot be had.
    #[must_use]
    pub fn join(shards: Vec<Vec<u8>>, mail: &[VecDeque<Mail>]) -> Vec<u8> {
        postcard::to_extend(&Written { shards, mail }, SNAPSHOT_MAGIC.to_vec())
            .expect("plain data can be encoded into memory")
    }

    /// The shards that [`snapshot`](Shards::snapshot) saw, under a configuration.
    ///
    /// # Errors
    /// [`BadSnapshot`] for anything else.
    pub fn restore(config: &Config, snapshot: &[u8]) -> Result<Shards, BadSnapshot> {
        let Some(body) = snapshot.strip_prefix(SNAPSHOT_MAGIC) else {
            return Ok(Shards::of(vec![Matcher::restore(config.clone(), snapshot)?]));
        };
        let read: Read = postcard::from_bytes(body).map_err(|error| BadSnapshot(error.to_string()))?;
        let count = read.shards.len();
        if !(2..=usize::from(SHARDS_MAX)).contains(&count) || read.mail.len() != count * count {
            return Err(BadSnapshot("shards and mail do not fit".to_owned()));
        }
        let each = read.shards.iter().enumerate().map(|(index, bytes)| {
            let shard = Shard { index: index as u16, count: count as u16 };
            Matcher::restore_shard(config.clone(), bytes, shard)
        });
        Ok(Shards { shards: each.collect::<Result<_, _>>()?, mail: read.mail })
    }

    /// A number that two matchers share exactly when their states are the same.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.snapshot()).as_bytes()
    }

    /// The first shard, where it is the only one.
    ///
    /// # Panics
    /// Never: there is a first shard.
    #[must_use]
    pub fn into_only(mut self) -> Matcher {
        self.shards.swap_remove(0)
    }

    /// The shards, for threads of their own. Mail that is on its way is lost: there should be none.
    #[must_use]
    pub fn into_shards(self) -> Vec<Matcher> {
        self.shards
    }
}
