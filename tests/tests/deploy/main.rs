//! Running it for real: without privileges, and under those who start services.

mod image;
mod kubernetes;
mod privileges;
mod sidecar;
mod systemd;
mod unit;
