//! The built-in programs without the rest of Roadstead: the tests make containers from this.

fn main() {
    std::process::exit(roadstead_node::applet::applet_main().unwrap_or_else(|| {
        eprintln!("usage: applets {} PROGRAM [ARGUMENT…]", roadstead_node::applet::SELECT);
        2
    }));
}
