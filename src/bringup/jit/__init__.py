"""Kernel sources become cached, loadable binaries."""
