//! URL of etcd, `etcd://USER@HOST:PORT,HOST:PORT/PREFIX`, as `--coordinator` takes it.
//!
//! Owns no state. Any thread.

/// Prefix of the keys if the URL has none.
const DEFAULT_PREFIX: &str = "/plasmon";
/// Port of a server if the URL has none.
const DEFAULT_PORT: u16 = 2379;

/// Parts of a URL of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EtcdUrl {
    pub(crate) user: Option<String>,
    /// `host:port` of each server.
    pub(crate) endpoints: Vec<String>,
    /// Prefix of the keys, without a slash at the end.
    pub(crate) prefix: String,
}

/// Parses a URL of etcd. The error describes a valid URL.
pub(crate) fn parse(text: &str) -> Result<EtcdUrl, String> {
    let example =
        "write etcd://HOST:PORT,HOST:PORT/PREFIX, such as etcd://10.0.0.1:2379,10.0.0.2:2379/plasmon";
    let rest = text.strip_prefix("etcd://").ok_or(example)?;
    let (servers, prefix) = match rest.split_once('/') {
        Some((servers, prefix)) => (servers, prefix.trim_matches('/')),
        None => (rest, ""),
    };
    let (user, servers) = match servers.rsplit_once('@') {
        Some((user, _)) if user.contains(':') => {
            return Err("a password must not stand in a command line, which every user of the host can \
                        read: write it to a file, and give that as --etcd-password-file"
                .into());
        }
        Some((user, servers)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), servers),
        None => (None, servers),
    };
    let endpoints = servers.split(',').map(endpoint).collect::<Option<Vec<_>>>().ok_or(example)?;
    let prefix = if prefix.is_empty() { DEFAULT_PREFIX.to_owned() } else { format!("/{prefix}") };
    Ok(EtcdUrl { user, endpoints, prefix })
}

/// Parses `host:port`, with the default port if there is none. An IPv6 address stands in brackets.
fn endpoint(text: &str) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (text, DEFAULT_PORT),
    };
    let whole = !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
    whole.then(|| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(user: Option<&str>, endpoints: &[&str], prefix: &str) -> Result<EtcdUrl, String> {
        let endpoints = endpoints.iter().map(|&one| one.to_owned()).collect();
        Ok(EtcdUrl { user: user.map(str::to_owned), endpoints, prefix: prefix.to_owned() })
    }

    #[test]
    fn urls_are_read() {
        assert_eq!(parse("etcd://h1:2379,h2:2380/a/b/"), url(None, &["h1:2379", "h2:2380"], "/a/b"));
        assert_eq!(parse("etcd://h1"), url(None, &["h1:2379"], "/plasmon"));
        assert_eq!(parse("etcd://h1/"), url(None, &["h1:2379"], "/plasmon"));
        assert_eq!(parse("etcd://me@[::1]:4,[::2]/p"), url(Some("me"), &["[::1]:4", "[::2]:2379"], "/p"));
    }

    #[test]
    fn others_are_refused() {
        for text in
            ["h1:2379", "http://h1", "etcd://", "etcd:///p", "etcd://h1,/p", "etcd://h1:x/p", "etcd://::1/p"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        let error = parse("etcd://me:secret@h1/p").expect_err("a password");
        assert!(error.contains("--etcd-password-file") && !error.contains("secret"), "{error}");
    }
}
