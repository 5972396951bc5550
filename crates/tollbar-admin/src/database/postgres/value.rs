//! Values as PostgreSQL has them: what a number or a text becomes follows from the column's type.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::database::RuleId;
use crate::database::sql::SqlValue;

type Fallible<T> = Result<T, Box<dyn Error + Sync + Send>>;

/// PostgreSQL counts from 2000: microseconds and days from 1970 until then.
const EPOCH_US: i64 = 946_684_800_000_000;
const EPOCH_DAYS: i64 = 10_957;

impl ToSql for SqlValue {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Fallible<IsNull> {
        match (self, ty) {
            (Self::Null, _) => return Ok(IsNull::Yes),
            (Self::Int(int), &Type::BOOL) => out.put_u8(u8::from(*int != 0)),
            (Self::Int(int), &Type::INT2) => out.put_i16(i16::try_from(*int)?),
            (Self::Int(int), &Type::INT4) => out.put_i32(i32::try_from(*int)?),
            (Self::Int(int), &Type::INT8) => out.put_i64(*int),
            (Self::Int(int), &Type::TIMESTAMPTZ) => out.put_i64(int.saturating_sub(EPOCH_US)),
            (Self::Int(int), &Type::DATE) => {
                out.put_i32(i32::try_from(int.saturating_sub(EPOCH_DAYS))?);
            }
            (Self::Text(text), &Type::UUID) => out.put_u128(text.parse::<RuleId>()?.as_u128()),
            (Self::Text(text), &Type::TEXT | &Type::VARCHAR | &Type::JSON) => {
                out.put_slice(text.as_bytes());
            }
            _ => return Err(format!("a value is asked for as {ty}").into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        // Which it is, the value says.
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for SqlValue {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Fallible<Self> {
        Ok(match *ty {
            Type::BOOL => Self::Int(i64::from(bool::from_sql(ty, raw)?)),
            Type::INT2 => Self::Int(i16::from_sql(ty, raw)?.into()),
            Type::INT4 => Self::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::TIMESTAMPTZ => {
                Self::Int(number(raw).map(i64::from_be_bytes)?.saturating_add(EPOCH_US))
            }
            Type::DATE => Self::Int(i64::from(number(raw).map(i32::from_be_bytes)?) + EPOCH_DAYS),
            Type::UUID => {
                Self::Text(RuleId::of_u128(number(raw).map(u128::from_be_bytes)?).to_string())
            }
            Type::TEXT | Type::VARCHAR | Type::JSON => Self::Text(str::from_utf8(raw)?.to_owned()),
            _ => return Err(format!("a value came as {ty}").into()),
        })
    }

    fn from_sql_null(_: &Type) -> Fallible<Self> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn number<const N: usize>(raw: &[u8]) -> Fallible<[u8; N]> {
    raw.try_into().map_err(|_| "a value of another length".into())
}
