//! Asks a running broker's admin interface.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::{self, token};
use crate::config::{ADMIN_PORT, Config};

/// A broker answers soon or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which broker.
#[derive(Debug, Args)]
pub(super) struct Where {
    /// The admin interface of any one broker
    #[arg(long, value_name = "URL", default_value_t = format!("http://127.0.0.1:{ADMIN_PORT}"))]
    admin: String,
    /// The broker's admin token, for an interface that is reached through a proxy
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Where {
    /// The broker that runs with this configuration, on this machine.
    pub(super) fn of(config: &Config) -> Self {
        let bind = config.admin.bind.unwrap_or(admin::DEFAULT_BIND);
        Self { admin: format!("http://{bind}"), token_file: Some(config.admin_token_file()) }
    }

    /// The same with that token, where it is said of none.
    pub(super) fn with_token(self, path: PathBuf) -> Self {
        Self { token_file: self.token_file.or(Some(path)), ..self }
    }

    /// The document at `path`, in answer to `question` where there is one.
    ///
    /// # Errors
    /// That no broker answers there, or why it does not.
    pub(super) fn ask<T: DeserializeOwned>(&self, path: &str, question: Option<&impl Serialize>) -> anyhow::Result<T> {
        self.call(path, |agent, url, token| match question {
            None => token.iter().fold(agent.get(url), |request, token| request.header("Authorization", token)).call(),
            Some(question) => {
                token.iter().fold(agent.post(url), |request, token| request.header("Authorization", token)).send_json(question)
            }
        })
    }

    /// Takes back what is at `path`; what the broker says then.
    ///
    /// # Errors
    /// As for [`Where::ask`].
    pub(super) fn take_back<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(path, |agent, url, token| {
            token.iter().fold(agent.delete(url), |request, token| request.header("Authorization", token)).call()
        })
    }

    fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        call: impl FnOnce(&ureq::Agent, String, Option<String>) -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> anyhow::Result<T> {
        let base = self.admin.trim_end_matches('/');
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let (agent, url): (ureq::Agent, _) = (config.build().into(), format!("{base}{path}"));
        let token = self.token_file.as_ref().map(|path| {
            let token = token::read(path).with_context(|| format!("cannot read the admin token {}", path.display()))?;
            anyhow::Ok(format!("Bearer {token}"))
        });
        let token = token.transpose()?;
        let mut answer = call(&agent, url, token).with_context(|| {
            format!("no broker answers at {base}; is one running there, with [admin] open? --admin URL names another")
        })?;
        if answer.status() != 200 {
            let refusal: serde_json::Value = answer.body_mut().read_json().unwrap_or_default();
            let why = refusal.get("error").and_then(|why| why.as_str()).unwrap_or("it does not say why");
            anyhow::bail!("{base} answers {}: {why}", answer.status());
        }
        answer
            .body_mut()
            .read_json()
            .with_context(|| format!("{base} gives no answer to {path}; is it the admin interface of a broker?"))
    }
}
