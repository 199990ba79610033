"""What repeats in a graph: `mining` finds it by connected parts (`growth`), `mined_pattern`."""
