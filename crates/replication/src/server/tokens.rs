//! Tokens, archetypes, and objects that the clients' map has already.

use super::{Named, ObjectError, Server};
use crate::class::ClassId;
use crate::handle::Handle;
use crate::tokens::{NAMES, TokenError};

impl Server {
    /// The number of a text in a table of the game's (0 to 254), for
    /// [`Value::Token`](crate::Value::Token): the same text has the same number for ever. A
    /// receiver is told the text in the first packet that uses the number, once. Costs a look-up.
    ///
    /// # Errors
    /// When the text is too long, there are too many, or the table is 255.
    pub fn intern(&mut self, table: u8, text: &str) -> Result<u32, TokenError> {
        if table == NAMES {
            return Err(TokenError::Reserved);
        }
        self.shared.tokens.intern(table, text, self.shared.config.tokens_max)
    }

    /// Says what the object is made from: receivers read it from
    /// [`Replica::archetype`](crate::Replica::archetype) when the object is created there. Call it
    /// before the object's first frame.
    ///
    /// # Errors
    /// When the object does not exist or is a startup object, or the text gets no number.
    pub fn set_archetype(&mut self, handle: Handle, text: &str) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        if self.shared.named.get(&index).is_some_and(|named| named.startup) {
            return Err(ObjectError::Name);
        }
        let token = self.shared.tokens.intern(NAMES, text, self.shared.config.tokens_max);
        let token = token.map_err(ObjectError::Token)?;
        self.shared.named.insert(index, Named { token, startup: false });
        Ok(())
    }

    /// Creates the server's side of an object that every client has in its map under the name
    /// `name`. Receivers do not spawn it: they bind their own object by
    /// [`Replica::startup_name`](crate::Replica::startup_name). Its end is remembered, and told to
    /// everybody, those who join later included
    /// ([`ClientEvent::StartupDestroyed`](crate::ClientEvent::StartupDestroyed)).
    ///
    /// # Errors
    /// As [`create`](Self::create), and when the name was used before or gets no number.
    pub fn create_startup(&mut self, class: ClassId, name: &str) -> Result<Handle, ObjectError> {
        let token = self.shared.tokens.intern(NAMES, name, self.shared.config.tokens_max);
        let token = token.map_err(ObjectError::Token)?;
        if self.startups.contains(&token) {
            return Err(ObjectError::Name);
        }
        let handle = self.create(class)?;
        self.startups.insert(token);
        self.shared.named.insert(handle.index(), Named { token, startup: true });
        Ok(handle)
    }

    /// The object is no more; everybody hears of it if its clients have it in their map.
    pub(super) fn end_name(&mut self, index: u32, reason: u8) {
        let Some(named) = self.shared.named.remove(&index) else { return };
        if named.startup {
            self.ended.insert(named.token, reason);
            for conn in self.connections.iter_mut().flatten() {
                conn.endings.push((named.token, reason));
            }
        }
    }
}
