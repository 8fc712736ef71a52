//! Running it for real: without privileges, and under those who start services.

mod privileges;
mod systemd;
