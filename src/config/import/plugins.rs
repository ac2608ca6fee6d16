//! The plug-ins whose options have keys here: mosquitto-go-auth and mosquitto-auth-plug, with a database, password files, a service over HTTP, or tokens.
//!
//! All of a plug-in's backends are carried over, or none: one that is missing may have been the one that refused.

use std::collections::BTreeMap;

use toml::Value;

use super::ImportError;
use super::lines::{Line, excerpt};
use super::text::Section;

/// Where the database's URL is to stand.
const DSN_FILE: &str = "/etc/mqtt-st-quic/dsn";
/// Where the secret of tokens is to stand.
const SECRET_FILE: &str = "/etc/mqtt-st-quic/jwt.secret";
/// Where systems have the certificates of public authorities.
const CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Longest time, seconds, that `cache_ttl` may be.
const CACHE_SECONDS_MAX: i64 = 86_400;

/// What the lines of a plug-in come to.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// `[auth]`.
    pub(super) auth: Section,
    /// `[auth.sql]`; empty where no database is asked.
    pub(super) sql: Section,
    /// `[auth.http]`, likewise.
    pub(super) http: Section,
    /// `[auth.jwt]`, likewise.
    pub(super) jwt: Section,
    /// What there is to say of lines, and whether something is left out there.
    pub(super) remarks: Vec<(Line, bool, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Each backend's options have its name in front.
    GoAuth,
    /// One set of options for whichever database it is.
    AuthPlug,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Database {
    Postgres,
    Mysql,
    Sqlite,
}

/// A plug-in's options by their names, without `auth_opt_`, and which of them have been used.
struct Options<'a> {
    kind: Kind,
    plugin: &'a Line,
    by_name: BTreeMap<&'a str, &'a Line>,
    used: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn take(&mut self, name: &str) -> Option<&'a Line> {
        let (name, line) = self.by_name.get_key_value(name)?;
        self.used.push(name);
        Some(line)
    }
}

/// The lines of a plug-in, its own first. Why they are not carried over, if they are not.
pub(super) fn translate(lines: &[Line]) -> Result<Result<Translated, String>, ImportError> {
    let Some((plugin, options)) = lines.split_first() else { return Ok(Err("there is none".to_owned())) };
    let path = plugin.text()?;
    let kind = match path.rsplit('/').next().unwrap_or(path) {
        name if name.contains("go-auth") => Kind::GoAuth,
        name if name.contains("auth-plug") || name.contains("auth_plug") => Kind::AuthPlug,
        _ => return Ok(Err("it is none of mosquitto-go-auth and mosquitto-auth-plug".to_owned())),
    };
    let name = |line: &'_ Line| line.key.split_once("_opt_").map(|(_, name)| name.to_owned());
    if options.iter().any(|line| name(line).is_none()) {
        return Ok(Err("there are several of them".to_owned()));
    }
    let by_name = options.iter().filter_map(|line| Some((line.key.split_once("_opt_")?.1, line))).collect();
    let mut options = Options { kind, plugin, by_name, used: Vec::new() };
    let Some(backends) = options.take("backends") else { return Ok(Err("auth_opt_backends is missing".to_owned())) };
    let mut translated = Translated::default();
    let (mut order, mut database) = (Vec::new(), None);
    for backend in backends.text()?.split(',').map(str::trim) {
        let found = match backend {
            "files" => {
                order.push(Value::from("file"));
                continue;
            }
            "postgres" => Database::Postgres,
            "mysql" => Database::Mysql,
            "sqlite" | "sqlite3" => Database::Sqlite,
            "http" | "jwt" => {
                let carried =
                    if backend == "http" { http(&mut options, &mut translated) } else { jwt(&mut options, &mut translated) };
                if let Err(why) = carried? {
                    return Ok(Err(why));
                }
                order.push(Value::from(backend));
                continue;
            }
            other => return Ok(Err(format!("its backend `{}` has none like it here", excerpt(other)))),
        };
        if database.replace(found).is_some() {
            return Ok(Err("it asks two databases, and one may be asked here".to_owned()));
        }
        order.push(Value::from("sql"));
    }
    if order.contains(&Value::from("file")) {
        for (key, names) in
            [("password_file", ["files_password_path", "password_path"]), ("acl_file", ["files_acl_path", "acl_path"])]
        {
            if let Some(line) = names.into_iter().find_map(|name| options.take(name)) {
                let named = line.text()?;
                if translated.auth.value(key).is_some_and(|(file, _)| file.as_str() != Some(named)) {
                    return Ok(Err("its backends `files` and `jwt` have two files of rules".to_owned()));
                }
                line.put(&mut translated.auth, &format!("auth.{key}"), line.text()?.into())?;
            }
        }
        if translated.auth.value("password_file").is_none() {
            return Ok(Err("its backend `files` has no password file".to_owned()));
        }
    }
    if let Some(database) = database
        && let Err(why) = sql(kind, database, &mut options, &mut translated)?
    {
        return Ok(Err(why));
    }
    if order.len() > 1 {
        let reason = "the first that knows a user decides about him, where the plug-in asked the next one when that refused him";
        translated.remarks.push((backends.clone(), false, reason.to_owned()));
    }
    backends.put(&mut translated.auth, "auth.backends", order.into())?;
    rest(&options, &mut translated);
    Ok(Ok(translated))
}

fn sql(
    kind: Kind,
    database: Database,
    options: &mut Options<'_>,
    translated: &mut Translated,
) -> Result<Result<(), String>, ImportError> {
    let prefix = match (kind, database) {
        (Kind::AuthPlug, _) => "",
        (Kind::GoAuth, Database::Postgres) => "pg_",
        (Kind::GoAuth, Database::Mysql) => "mysql_",
        (Kind::GoAuth, Database::Sqlite) => "sqlite_",
    };
    let mut option = |name: &str| options.take(&format!("{prefix}{name}"));
    let queries =
        [("user_query", option("userquery")), ("acl_query", option("aclquery")), ("superuser_query", option("superquery"))];
    let place = |line: Option<&Line>, default: &str| line.map_or(Ok(default.to_owned()), |line| line.text().map(str::to_owned));
    let url = match database {
        Database::Sqlite => {
            let file = option(if kind == Kind::GoAuth { "source" } else { "dbpath" });
            format!("sqlite://{}", place(file, "/PATH")?)
        }
        Database::Postgres | Database::Mysql => {
            let (scheme, port) = if database == Database::Postgres { ("postgres", "5432") } else { ("mysql", "3306") };
            let (host, port) = (place(option("host"), "localhost")?, place(option("port"), port)?);
            let (user, name) = (place(option("user"), "USER")?, place(option("dbname"), "NAME")?);
            // Not shown.
            option(if kind == Kind::GoAuth { "password" } else { "pass" });
            // The plug-ins' default is not known to be safe, nor is what stands between: to be decided by who writes the URL.
            let tls = match database {
                Database::Postgres => {
                    let mut tls = format!("sslmode={}", place(option("sslmode"), "verify-full")?);
                    for key in ["sslrootcert", "sslcert", "sslkey"] {
                        if let Some(line) = option(key) {
                            tls.push_str(&format!("&{key}={}", line.text()?));
                        }
                    }
                    tls
                }
                Database::Mysql | Database::Sqlite => "ssl-mode=VERIFY_IDENTITY".to_owned(),
            };
            format!("{scheme}://{user}:PASSWORD@{host}:{port}/{name}?{tls}")
        }
    };
    let disables = options.take("disable_superuser").map_or(Ok(false), Line::boolean)?;
    for (key, line) in queries {
        let Some(line) = line else {
            if key == "user_query" {
                return Ok(Err("it has no query for users".to_owned()));
            }
            if key == "acl_query" && kind == Kind::AuthPlug {
                let why = "it has no auth_opt_aclquery, without which its users may do nothing; here they could do everything";
                return Ok(Err(why.to_owned()));
            }
            continue;
        };
        if key == "superuser_query" && disables {
            continue;
        }
        // mosquitto-auth-plug writes the user's name and the access into the text.
        let (user, access) = if database == Database::Postgres { ("$1", "$2") } else { ("?", "?") };
        let query = line.text()?.replace("'%s'", user).replace("%s", user).replace("'%d'", access).replace("%d", access);
        line.put(&mut translated.sql, &format!("auth.sql.{key}"), query.into())?;
    }
    translated.sql.set("dsn_file", DSN_FILE.into(), &options.plugin.origin);
    translated.remarks.push((
        options.plugin.clone(),
        true,
        format!("where the database is stands in a file of its own: write {url} into {DSN_FILE}, and let nobody but the broker's user read it"),
    ));
    cache_ttl(options, &mut translated.sql, "auth.sql.cache_ttl")?;
    Ok(Ok(()))
}

/// The shortest of the plug-in's times.
fn cache_ttl(options: &mut Options<'_>, section: &mut Section, path: &str) -> Result<(), ImportError> {
    let names = ["auth_cache_seconds", "acl_cache_seconds", "auth_cacheseconds", "acl_cacheseconds", "cache_ttl"];
    let seconds: Vec<&Line> = names.into_iter().filter_map(|name| options.take(name)).collect();
    if let Some(line) = seconds.first() {
        let all: Vec<i64> = seconds.iter().map(|line| line.integer()).collect::<Result<_, _>>()?;
        let least = all.into_iter().min().unwrap_or(1).clamp(1, CACHE_SECONDS_MAX);
        line.put(section, path, format!("{least}s").into())?;
    }
    Ok(())
}

/// A service. The plug-in asks it about each topic; here it is asked for all rules of a user, so it must answer otherwise there, and grants nothing until it does.
fn http(options: &mut Options<'_>, translated: &mut Translated) -> Result<Result<(), String>, ImportError> {
    let text = |line: Option<&Line>| line.map(|line| line.text().map(str::to_owned)).transpose();
    // mosquitto-auth-plug connects to `http_ip`; `http_hostname` is but a header.
    let place = if options.kind == Kind::AuthPlug { options.take("http_ip") } else { options.take("http_host") };
    let host = text(place)?;
    if let Some(line) = options.take("http_response_mode")
        && line.text()? != "status"
    {
        return Ok(Err("its backend `http` takes a no from the body of an answer, in a way that is not kept here".to_owned()));
    }
    let is_over_tls = options.take("http_with_tls").map_or(Ok(false), Line::boolean)?;
    let port = text(options.take("http_port"))?.map(|port| format!(":{port}")).unwrap_or_default();
    let base = format!("{}://{}{port}", if is_over_tls { "https" } else { "http" }, host.unwrap_or_else(|| "localhost".to_owned()));
    if let Some(line) = options.take("http_method")
        && !line.text()?.eq_ignore_ascii_case("post")
    {
        return Ok(Err("its backend `http` asks by another method than POST".to_owned()));
    }
    let disables = options.take("disable_superuser").map_or(Ok(false), Line::boolean)?;
    for (key, name) in [("user_url", "getuser_uri"), ("superuser_url", "superuser_uri"), ("acl_url", "aclcheck_uri")] {
        let Some(line) = options.take(&format!("http_{name}")) else {
            if key == "superuser_url" {
                continue;
            }
            return Ok(Err(format!("its backend `http` has no auth_opt_http_{name}")));
        };
        if key == "superuser_url" && disables {
            continue;
        }
        let path = line.text()?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        line.put(&mut translated.http, &format!("auth.http.{key}"), format!("{base}{slash}{path}").into())?;
        if key == "acl_url" {
            let reason = "the plug-in asks it about each topic, and here it is asked for all rules of a user: it must answer with them (deploy/auth.md); \
                          until it does, its users come in with no rights, or not at all";
            translated.remarks.push((line.clone(), true, reason.to_owned()));
        }
    }
    // Forms are what mosquitto-auth-plug sends; mosquitto-go-auth says so.
    let is_form = match options.take("http_params_mode") {
        Some(line) => match line.text()? {
            "json" => false,
            "form" => true,
            other => return Ok(Err(format!("its backend `http` sends `{}`", excerpt(other)))),
        },
        None => options.kind == Kind::AuthPlug,
    };
    if is_form {
        translated.http.set("format", "form".into(), &options.plugin.origin);
    }
    if !is_over_tls {
        translated.http.set("plain_http", true.into(), &options.plugin.origin);
    }
    if is_over_tls {
        translated.http.set("cafile", CA_FILE.into(), &options.plugin.origin);
    }
    if let Some(line) = options.take("http_timeout") {
        line.put(&mut translated.http, "auth.http.timeout", format!("{}s", line.between(1, 60)?.min(8)).into())?;
    }
    if let Some(line) = options.take("http_verify_peer")
        && !line.boolean()?
    {
        translated.remarks.push((line.clone(), true, format!("the service's certificate is always checked, by {CA_FILE}")));
    }
    cache_ttl(options, &mut translated.http, "auth.http.cache_ttl")?;
    Ok(Ok(()))
}

/// Tokens that are looked at with a secret, and rules of a file.
fn jwt(options: &mut Options<'_>, translated: &mut Translated) -> Result<Result<(), String>, ImportError> {
    if options.take("jwt_mode").map(Line::text).transpose()? != Some("files") {
        return Ok(Err("its backend `jwt` has another auth_opt_jwt_mode than files".to_owned()));
    }
    let Some(secret) = options.take("jwt_secret") else { return Ok(Err("its backend `jwt` has no secret".to_owned())) };
    translated.jwt.set("secret_file", SECRET_FILE.into(), &secret.origin);
    let reason =
        format!("a secret stands in a file of its own: write it into {SECRET_FILE}, and let nobody but the broker's user read it");
    translated.remarks.push((secret.clone(), true, reason));
    translated.jwt.set("in_user_name", true.into(), &options.plugin.origin);
    if let Some(line) = options.take("jwt_userfield")
        && line.text()?.eq_ignore_ascii_case("username")
    {
        line.put(&mut translated.jwt, "auth.jwt.user_claim", "username".into())?;
    }
    let Some(line) = options.take("jwt_files_acl_path").or_else(|| options.take("jwt_acl_path")) else {
        return Ok(Err("its backend `jwt` has no file of rules".to_owned()));
    };
    line.put(&mut translated.auth, "auth.acl_file", line.text()?.into())?;
    // What a token says of rights was not looked at.
    translated.jwt.set("acl_claim", "".into(), &options.plugin.origin);
    Ok(Ok(()))
}

/// The options that are left.
fn rest(options: &Options<'_>, translated: &mut Translated) {
    for (name, line) in &options.by_name {
        if options.used.contains(name) {
            continue;
        }
        let is_needless = ["hasher", "log_", "cache", "retry", "disable_superuser"].iter().any(|known| name.starts_with(known));
        let reason = match is_needless {
            true => "not needed: hashes say themselves what they are, and the log and what is remembered have keys of their own",
            false => "there is no such option here",
        };
        translated.remarks.push(((*line).clone(), !is_needless, reason.to_owned()));
    }
}
