//! Names and objects, as the user writes them in the command line.
//!
//! Owns no state. Any thread. Invariant: a [`Which`] that is parsed holds an id or a valid name.

use clap::Args as ClapArgs;
use plasmon::wire::MAX_NAME_BYTES;
use plasmon::{Client, ObjectId};

/// Object as the user named it.
#[derive(Debug, Clone)]
pub(crate) struct Which {
    /// Name or id of the object, as the user wrote it.
    pub(crate) text: String,
    /// Id that the text stands for. `None` if the text is a name.
    id: Option<ObjectId>,
}

impl Which {
    /// An empty [`Which`], which names no object.
    pub(crate) fn nothing() -> Self {
        Self { text: String::new(), id: None }
    }

    /// Id of the object for this client.
    pub(crate) fn id(&self, client: &Client, whose: &Whose) -> ObjectId {
        self.id.unwrap_or_else(|| whose.named(&self.text, client))
    }

    /// The text, if it is a name and not an id.
    pub(crate) fn name(&self) -> Option<&str> {
        self.id.is_none().then_some(self.text.as_str())
    }

    /// Returns a function that puts the user's name of the object into an error.
    pub(crate) fn named(&self, id: ObjectId) -> impl FnOnce(plasmon::Error) -> plasmon::Error {
        let name = self.name();
        move |error| name.into_iter().fold(error.about(id), |error, name| error.naming(name))
    }
}

/// Parses an object: 40 hexadecimal digits are an id, any other text is a name.
pub(crate) fn which(text: &str) -> Result<Which, String> {
    let id = text.parse().ok();
    if id.is_none() {
        name(text)?;
    }
    Ok(Which { text: text.to_owned(), id })
}

/// Argument that says whose names are meant.
#[derive(Debug, ClapArgs)]
pub(crate) struct Whose {
    /// Names are those of this user's private objects (`plasmon put --private`)
    #[arg(long)]
    pub(crate) private: bool,
}

impl Whose {
    /// Id of the object with this name.
    fn named(&self, name: &str, client: &Client) -> ObjectId {
        if self.private {
            ObjectId::from_private_name(name, client.user())
        } else {
            ObjectId::from_name(name)
        }
    }
}

/// Parses a name of an object, a region, a lock, a service or a volume.
pub(crate) fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name has at least one character".into()),
        len if len > MAX_NAME_BYTES => {
            Err(format!("a name has at most {MAX_NAME_BYTES} bytes, and this one has {len}"))
        }
        _ if text.parse::<ObjectId>().is_ok() => {
            Err("40 hexadecimal digits are an id, not a name: use --id, or another name".into())
        }
        _ => Ok(text.to_owned()),
    }
}
