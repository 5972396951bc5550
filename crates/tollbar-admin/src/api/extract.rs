//! What handlers of the admin API take as arguments, read from a request and described in the document.
//!
//! An [`AuthorizedRequest`] comes first, because axum reads arguments in their order: nothing else of a request is looked
//! at, and nothing is revealed, before its token is known to suffice. A [`JsonBody`] is read last.

use std::marker::PhantomData;
use std::sync::Arc;

use aide::OperationInput;
use aide::generate::GenContext;
use aide::openapi::{Operation, Parameter, ParameterSchemaOrContent};
use aide::operation::{ParamLocation, add_parameters, parameters_from_schema};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use hyper::http::request::Parts;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::body;
use super::query::{NoParameters, Parameters, Query};
use crate::api::body::BODY_BYTES_MAX;
use crate::operations::Admin;
use crate::operations::auth::access::{Actor, RequiredPermission};
use crate::origin::Origin;
use tollbar_daemon::openapi::{
    SchemaOf, refuse, request_schema, schema_of, set_json_body, set_open,
};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::protocol::http::ExplainRequest;

/// A request whose token has the permission `N`, with none but the parameters `P` in its query.
#[derive(Debug)]
pub(crate) struct AuthorizedRequest<N, P = NoParameters> {
    pub(crate) admin: Arc<Admin>,
    pub(crate) actor: Arc<Actor>,
    /// The segment of the path that is in braces; empty where there is none.
    pub(crate) id: String,
    pub(crate) query: Query,
    types: PhantomData<(N, P)>,
}

/// A request to a path that needs no token and takes no parameters.
#[derive(Debug)]
pub(crate) struct PublicRequest {
    pub(crate) admin: Arc<Admin>,
}

/// A body of JSON.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A request to be explained, as the interface for checks reads it.
#[derive(Debug)]
pub(crate) struct ExplainBody(pub(crate) Bytes);

/// A request body. The document and the error for a wrong body both show its example.
pub(crate) trait RequestBody: DeserializeOwned + JsonSchema {
    const EXAMPLE: &str;
}

impl<N: RequiredPermission, P: Parameters> FromRequestParts<Arc<Admin>>
    for AuthorizedRequest<N, P>
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let actor = admin
            .authenticate(&parts.headers, Origin::from_extensions(&parts.extensions).peer)
            .await?;
        actor.reach(N::PERMISSION)?;
        let path = RawPathParams::from_request_parts(parts, &()).await;
        let path = path.map_err(|_| Problem::not_found("id"))?;
        let id = path.iter().next().map_or_else(String::new, |(_, value)| value.to_owned());
        let query = Query::read::<P>(parts.uri.query().unwrap_or_default())?;
        Ok(Self { admin: Arc::clone(admin), actor, id, query, types: PhantomData })
    }
}

impl FromRequestParts<Arc<Admin>> for PublicRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        Query::read::<NoParameters>(parts.uri.query().unwrap_or_default())?;
        Ok(Self { admin: Arc::clone(admin) })
    }
}

impl<T: RequestBody, S: Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        body::parse(&read(request).await?, T::EXAMPLE).map(Self)
    }
}

impl<S: Sync> FromRequest<S> for ExplainBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        read(request).await.map(Self)
    }
}

async fn read(request: Request) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    Ok(Origin::from_extensions(&parts.extensions).read(body, BODY_BYTES_MAX).await?)
}

impl<N: RequiredPermission, P: Parameters> OperationInput for AuthorizedRequest<N, P> {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        operation.extensions.insert("x-tollbar-scopes".to_owned(), json!(N::PERMISSION.scopes()));
        let schema = request_schema(context, Query::json_schema);
        let mut parameters = parameters_from_schema(context, schema, ParamLocation::Query);
        let place = |parameter: &Parameter| {
            P::NAMES.iter().position(|name| *name == parameter.parameter_data_ref().name)
        };
        parameters.retain(|parameter| place(parameter).is_some());
        parameters.sort_by_key(place);
        for parameter in &mut parameters {
            if let ParameterSchemaOrContent::Schema(schema) =
                &mut parameter.parameter_data_mut().format
            {
                // It is the parameter's already.
                schema.json_schema.remove("description");
            }
        }
        add_parameters(context, operation, parameters);
        refuse(operation, &[400, 401, 403, 429, 503]);
    }
}

impl OperationInput for PublicRequest {
    fn operation_input(_: &mut GenContext, operation: &mut Operation) {
        set_open(operation);
        refuse(operation, &[400]);
    }
}

impl<T: RequestBody> OperationInput for JsonBody<T> {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        describe_body(context, operation, schema_of::<T>, T::EXAMPLE);
    }
}

impl OperationInput for ExplainBody {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        describe_body(context, operation, ExplainRequest::schema, ExplainRequest::EXAMPLE);
    }
}

fn describe_body(
    context: &mut GenContext,
    operation: &mut Operation,
    schema: SchemaOf,
    example: &str,
) {
    let schema = request_schema(context, schema);
    set_json_body(operation, &schema, example);
    refuse(operation, &[400, 408, 413, 422]);
}
