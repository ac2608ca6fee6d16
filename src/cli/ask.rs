//! Asks a running broker's admin interface.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::token;
use crate::config::ADMIN_PORT;

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
    /// The document at `path`, in answer to `question` where there is one.
    ///
    /// # Errors
    /// That no broker answers there, or why it does not.
    pub(super) fn ask<T: DeserializeOwned>(&self, path: &str, question: Option<&impl Serialize>) -> anyhow::Result<T> {
        let base = self.admin.trim_end_matches('/');
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let (agent, url): (ureq::Agent, _) = (config.build().into(), format!("{base}{path}"));
        let token = self.token_file.as_ref().map(|path| {
            let token = token::read(path).with_context(|| format!("cannot read the admin token {}", path.display()))?;
            anyhow::Ok(format!("Bearer {token}"))
        });
        let token = token.transpose()?;
        let answer = match question {
            None => token.iter().fold(agent.get(url), |request, token| request.header("Authorization", token)).call(),
            Some(question) => {
                token.iter().fold(agent.post(url), |request, token| request.header("Authorization", token)).send_json(question)
            }
        };
        let mut answer = answer.with_context(|| {
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
