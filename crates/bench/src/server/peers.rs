//! The servers that are measured, each by itself, and where they come from: ours beside this program,
//! others from the crate registry or from Debian.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::process::{ServerProcess, free_port};

/// Pinned, so that figures can be compared.
const REDIS_CELL: &str = "0.2.2";
const THROTTLECRAB: &str = "0.4.40";

/// A server, and where it speaks what.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) server: ServerProcess,
    pub(super) resp: u16,
    pub(super) http: u16,
}

/// Where cargo puts what it builds.
pub(super) fn target() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    // target/release/tollbar-bench
    let target = program.ancestors().nth(2).map(Path::to_owned);
    target.ok_or_else(|| io::Error::other("this program is in no target directory"))
}

/// The daemon's program.
pub(super) fn program() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("tollbar");
    if program.exists() {
        return Ok(program);
    }
    Err(io::Error::other(format!(
        "there is no {}: run `cargo build --release -p tollbar-cli`, as `cargo xtask bench server` \
         does",
        program.display()
    )))
}

/// The daemon, with room for `max_keys`.
pub(super) fn tollbar(max_keys: u64) -> io::Result<Peer> {
    let program = program()?;
    let (resp, http) = (free_port()?, free_port()?);
    let rules = target()?.join("bench-rules.yaml");
    fs::write(
        &rules,
        "rules: [{ name: per_user, per: [user], limit: 1000000/s, burst: 1000000 }]\n",
    )?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--rules").arg(rules);
    command.args(["--max-keys", &max_keys.to_string()]);
    command.args(["--resp", &format!("127.0.0.1:{resp}")]);
    command.args(["--listen", &format!("127.0.0.1:{http}")]);
    command.env("TOLLBAR_GRPC", "off");
    Ok(Peer { server: ServerProcess::start(&mut command, resp)?, resp, http })
}

/// Redis, with the module redis-cell where there is one.
pub(super) fn redis(module: Option<&Path>) -> io::Result<Peer> {
    let port = free_port()?;
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    if let Some(module) = module {
        command.arg("--loadmodule").arg(module);
    }
    Ok(Peer { server: ServerProcess::start(&mut command, port)?, resp: port, http: 0 })
}

/// The module redis-cell, built on first use.
pub(super) fn redis_cell() -> io::Result<PathBuf> {
    let folder = target()?.join("tools/redis-cell");
    let module = folder.join("build/release/libredis_cell.so");
    if !module.exists() {
        eprintln!("building redis-cell {REDIS_CELL}");
        fs::create_dir_all(folder.join("src"))?;
        let manifest = format!(
            "[package]\nname = \"peer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
             redis-cell = \"={REDIS_CELL}\"\n\n[workspace]\n"
        );
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::write(folder.join("src/lib.rs"), "")?;
        let mut cargo = cargo();
        cargo.current_dir(&folder).args(["build", "--release", "--package", "redis-cell"]);
        run(cargo.arg("--target-dir").arg(folder.join("build")))?;
    }
    Ok(module)
}

/// throttlecrab's server, installed on first use. Its build needs `protoc`, from Debian's
/// `protobuf-compiler`.
pub(super) fn throttlecrab() -> io::Result<Peer> {
    let tools = target()?.join("tools");
    let program = tools.join("bin/throttlecrab-server");
    if !program.exists() {
        eprintln!("installing throttlecrab-server {THROTTLECRAB}");
        let mut cargo = cargo();
        cargo.args(["install", "--locked", "--version", THROTTLECRAB, "--root"]).arg(&tools);
        run(cargo.arg("throttlecrab-server"))?;
    }
    let (resp, http) = (free_port()?, free_port()?);
    let mut command = Command::new(program);
    command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &resp.to_string()]);
    command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &http.to_string()]);
    command.args(["--log-level", "error"]);
    Ok(Peer { server: ServerProcess::start(&mut command, resp)?, resp, http })
}

/// nginx with `limit_req`, in front of its own empty picture.
pub(super) fn nginx() -> io::Result<Peer> {
    let http = free_port()?;
    let folder = target()?.join("bench-nginx");
    fs::create_dir_all(&folder)?;
    let here = folder.display();
    let config = format!(
        "daemon off; worker_processes 1; master_process off; pid {here}/pid; error_log {here}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; keepalive_requests 1000000000;\n  \
         client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c;\n  \
         uwsgi_temp_path {here}/d; scgi_temp_path {here}/e;\n  \
         limit_req_zone $arg_key zone=z:10m rate=1000000r/s;\n  \
         server {{ listen 127.0.0.1:{http}; location / {{ limit_req zone=z burst=1000000 nodelay; \
         empty_gif; }} }}\n}}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&folder).arg("-c").arg(&file);
    Ok(Peer { server: ServerProcess::start(&mut command, http)?, resp: 0, http })
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
