"""Random expressions over x (a tensor), n (int), flag (bool), sizes (int[]) and y (a tensor or
None), in both spellings.
"""

from hypothesis import strategies as st

_LARGE = (2**31, 2**62 - 1)
_LEAVES = st.one_of(
    st.integers(-9, 9).map(str),
    st.sampled_from([*_LARGE, *(-n for n in _LARGE)]).map(str),
    st.sampled_from(
        ["n", "flag", "has(y)", "x.numel()", "numel(x)", "x.dim()", "ndim(x)", "len(sizes)"]
    ),
    st.sampled_from(["sizes[0]", "sizes[2]", "size(x, n)", "stride(x, n)"]),
    st.builds(
        lambda spelling, dim: spelling.format(dim),
        st.sampled_from(
            ["x.shape[{}]", "x.size({})", "size(x,{})", "x.stride({})", "stride(x,{})"]
        ),
        st.integers(-3, 2),
    ),
)
_OPERATORS = ["+", "-", "*", "//", "%", "<", "<=", "==", "!=", ">=", ">", "and", "or"]
EXPRESSIONS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda left, operator, right: f"({left} {operator} {right})",
            inner,
            st.sampled_from(_OPERATORS),
            inner,
        ),
        st.builds("({} {})".format, st.sampled_from(["-", "not"]), inner),
        st.builds("min({}, {})".format, inner, inner),
        st.builds(
            "{}, {}, {})".format,
            st.sampled_from(["size(x", "stride(x"]),
            st.integers(-3, 2),
            inner,
        ),
    ),
    max_leaves=6,
)
