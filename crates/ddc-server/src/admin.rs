//! The service about itself: peers, rights, administration.

use std::sync::Arc;

use hyper::Response;
use throng_ddc::api::{RefName, Route};
use throng_ddc::policy::Action;
use throng_ddc::{Bucket, Namespace, Value};
use throng_ddc_store::StoreError;

use crate::answer::{Answer, Problem, object};
use crate::blocking;
use crate::body::Body;
use crate::listener::Listener;
use crate::service::{ApiRequest, Service, json};

impl Service {
    pub(crate) fn peers(&self, request: &ApiRequest<'_>) -> Response<Body> {
        let site = Value::string(&self.rules().site);
        let endpoints = self.rules().endpoints.iter().map(|endpoint| Value::string(endpoint)).collect();
        let peer = Value::object([
            ("site", site.clone()),
            ("fullName", site.clone()),
            ("latency", Value::Integer(0)),
            ("endpoints", Value::Array(endpoints)),
        ]);
        let value = Value::object([("currentSite", site), ("peers", Value::Array(vec![peer]))]);
        object(&value, request.answer_media(None))
    }

    pub(crate) fn actions(
        &self,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> Response<Body> {
        let rules = self.rules();
        let permitted = |action: &&Action| rules.access.permit(&request.caller, **action, namespace, bucket);
        let names: Vec<&str> = Action::ALL.iter().filter(permitted).map(|action| action.name()).collect();
        let mut matched = Vec::new();
        if let Some(claims) = &request.caller.claims {
            for policy in rules.access.policies.matching(claims, namespace, bucket) {
                let actions: Vec<&str> = policy.acl.actions.iter().map(|action| action.name()).collect();
                matched.push(serde_json::json!({
                    "name": policy.name, "actions": actions, "claims": policy.acl.claims,
                }));
            }
        }
        json(&serde_json::json!({ "actions": names, "logOutput": [], "matchedPolicies": matched }))
    }

    pub(crate) async fn admin(self: &Arc<Service>, request: &ApiRequest<'_>, route: &Route) -> Answer {
        if request.listener != Listener::Internal {
            return Err(Problem::missing("no such route on this listener"));
        }
        let everywhere: Namespace = "admin".parse().map_err(Problem::bad)?;
        let (action, namespace) = match route {
            Route::ReplicationLog(namespace) | Route::Snapshots(namespace) => {
                (Action::ReadTransactionLog, namespace)
            }
            Route::SnapshotCreate(namespace) => (Action::WriteTransactionLog, namespace),
            _ => (Action::AdminAction, &everywhere),
        };
        self.permit(request, action, namespace, None)?;
        match route {
            Route::Settings => Ok(json(&serde_json::json!({
                "settings": { "site": self.rules().site, "figures": self.report() },
            }))),
            Route::LastAccessRollup => {
                let noted: Vec<serde_json::Value> = blocking::in_place(|| self.note_accesses())
                    .iter()
                    .map(|RefName { namespace, bucket, key }| {
                        serde_json::json!({
                            "ns": namespace.as_str(), "bucket": bucket.as_str(), "key": key.as_str(),
                        })
                    })
                    .collect();
                Ok(json(&serde_json::json!({ "updatedRecords": noted })))
            }
            Route::RefCleanup => {
                let service = Arc::clone(self);
                let collected =
                    blocking::aside(move || service.collect()).await.ok_or(StoreError::Busy)??;
                Ok(json(&serde_json::json!({ "countOfRemovedRecords": collected.refs })))
            }
            Route::ReplicationLog(namespace) => self.incremental(request, namespace),
            Route::Snapshots(namespace) => self.snapshots(namespace),
            Route::SnapshotCreate(namespace) => self.create_snapshot(namespace).await,
            _ => Err(Problem::missing("no such route")),
        }
    }
}
