//! What the verdict program and the controller agree on: names, the flow record, and its layout.
#![no_std]
