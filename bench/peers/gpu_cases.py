"""The cases of gpu_ops.py: for each op of bench_gpu, a function of the call index that runs it."""
import math
import time

import torch
import torch.nn.functional as F

import gpt

L2_BYTES = 60e6
OPS = {}


class Case:
    """Shape, dtype and mode of a row, with rotating buffers so that no cache holds them."""

    def __init__(self, shape, dtype, device, mode):
        self.shape, self.dtype, self.device, self.mode = shape, dtype, device, mode
        self.kv_heads = 0
        self.sets = self.cold_sets(shape)

    def cold_sets(self, shape):
        size = math.prod(shape) * self.dtype.itemsize
        return min(max(math.ceil(2 * L2_BYTES / max(size, 1)), 2), 32)

    def inputs(self, shape=None, grad=False, dtype=None):
        shape = self.shape if shape is None else shape
        made = [uniform(shape, dtype or self.dtype, self.device) for _ in range(self.sets)]
        return [t.requires_grad_(grad) for t in made]

    def compiled(self, fn):
        if self.mode != "compiled":
            return fn
        # Otherwise the limit on recompilations would run later shapes in eager mode.
        torch._dynamo.reset()
        return torch.compile(fn, dynamic=False, fullgraph=True)


def uniform(shape, dtype, device):
    return torch.rand(shape, device=device, dtype=dtype).mul_(2).sub_(1)


def op(*names, modes=("eager", "compiled")):
    def register(make_call):
        for name in names:
            OPS[name] = (make_call, modes)
        return make_call
    return register


def make(name, case):
    """The function to time, or None if the mode does not support the op."""
    if name not in OPS:
        return None
    make_call, modes = OPS[name]
    return make_call(case, name) if case.mode in modes else None


def forward(case, fn, *buffers):
    fn = case.compiled(fn)

    def call(i):
        with torch.no_grad():
            fn(*(b[i % len(b)] for b in buffers))
    return call


def backward(case, fn, inputs, shared, gradients):
    """Times the gradients of the rotating `inputs` and of `shared`; forward runs beforehand."""
    if case.mode == "compiled":
        import torch._functorch.config as config
        config.donated_buffer = False  # the graph is used more than once
    fn = case.compiled(fn)
    outputs = []
    for i in range(case.sets):
        y = fn(*(b[i] for b in inputs))
        outputs.append(y if isinstance(y, tuple) else (y,))

    def call(i):
        i %= case.sets
        wanted = [b[i] for b in inputs if b[i].requires_grad] + list(shared)
        torch.autograd.grad(outputs[i], wanted, [g[i] for g in gradients], retain_graph=True)
    return call


@op("copy", modes=("eager",))
def copy(case, name):
    x, y = case.inputs(), case.inputs()
    return lambda i: y[i % case.sets].copy_(x[i % case.sets])


@op(*(f"{kind}_norm {way}{more}" for kind in ("layer", "rms") for way in ("forward", "backward")
      for more in ("", " residual")))
def norm(case, name):
    width, back = case.shape[-1:], "backward" in name
    weight = uniform(width, case.dtype, case.device).requires_grad_(back)
    bias = uniform(width, case.dtype, case.device).requires_grad_(back)
    layer = name.startswith("layer")

    def of(x):
        return F.layer_norm(x, width, weight, bias) if layer else F.rms_norm(x, width, weight, 1e-5)

    def of_sum(x, residual):
        added = x + residual
        return added, of(added)

    fn, count = (of_sum, 2) if "residual" in name else (of, 1)
    buffers = [case.inputs(grad=back and i == 0) for i in range(count)]
    if not back:
        return forward(case, fn, *buffers)
    shared = [weight, bias] if layer else [weight]
    return backward(case, fn, buffers, shared, [case.inputs() for _ in range(count)])


@op("softmax forward", "softmax backward", "gelu forward", "gelu backward", "swiglu forward",
    "swiglu backward")
def rows(case, name):
    kind, way = name.split()
    fn = {
        "softmax": lambda x: torch.softmax(x, -1),
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "swiglu": lambda gate, up: F.silu(gate) * up,
    }[kind]
    buffers = [case.inputs(grad=way == "backward") for _ in range(2 if kind == "swiglu" else 1)]
    if way == "forward":
        return forward(case, fn, *buffers)
    return backward(case, fn, buffers, [], [case.inputs()])


@op("cross_entropy in place")
def cross_entropy(case, name):
    logits, classes = case.inputs(grad=True), case.shape[1]
    targets = spread_ids(case.shape[0], classes).to(case.device)
    fn = case.compiled(lambda x: F.cross_entropy(x, targets))

    def call(i):
        x = logits[i % case.sets]
        torch.autograd.grad(fn(x), x)
    return call


def spread_ids(n, below):
    return ((torch.arange(n) * 2654435761) % 2**32 // 256) % below


@op("embedding backward")
def embedding(case, name):
    tokens, width, vocab = case.shape
    case.sets = case.cold_sets((tokens, width))
    ids, dy = spread_ids(tokens, vocab).to(case.device), case.inputs((tokens, width))
    return forward(case, lambda g: torch.ops.aten.embedding_dense_backward(g, ids, vocab, -1, False), dy)


@op("sum over rows")
def sum_rows(case, name):
    return forward(case, lambda x: x.sum(0), case.inputs())


@op("rope")
def rope(case, name):
    _, tokens, _, dim = case.shape
    angles = torch.arange(tokens)[:, None] * 10000.0 ** (-2 / dim * torch.arange(dim // 2))
    cos, sin = (t[:, None, :].to(case.device) for t in (angles.cos(), angles.sin()))

    def fn(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
    return forward(case, fn, case.inputs())


@op("dropout")
def dropout(case, name):
    return forward(case, lambda x: F.dropout(x, 0.1), case.inputs())


def model_shapes(count):
    """The shapes of GPT-2's parameters if `count` is their number, else of one tensor."""
    with torch.device("meta"):
        shapes = [p.shape for p in gpt.Gpt(gpt.MODELS["124m-b4-t1024"], 50304).parameters()]
    return shapes if sum(map(math.prod, shapes)) == count else [(count,)]


@op("adamw", "gradient norm", modes=("eager",))
def optimizer(case, name):
    if case.dtype != torch.float32:
        return None  # PyTorch's optimizer keeps no f32 copy of bf16 weights, so it is not
                     # comparable
    parameters = [uniform(s, case.dtype, case.device) for s in model_shapes(case.shape[0])]
    for p in parameters:
        p.grad = uniform(p.shape, case.dtype, case.device)
    if name == "gradient norm":
        grads = [p.grad for p in parameters]
        return lambda i: torch.nn.utils.get_total_norm(grads, foreach=True)
    adamw = torch.optim.AdamW(parameters, lr=1e-6, fused=True)
    return lambda i: adamw.step()


@op(*(f"attention {way}{mask}" for way in ("forward", "backward") for mask in ("", " causal")),
    modes=("eager", "cudnn"))
def attention(case, name):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    batch, heads, tokens, dim = case.shape
    kv = case.kv_heads or heads
    flash = SDPBackend.FLASH_ATTENTION
    if case.dtype == torch.float32:
        flash = SDPBackend.EFFICIENT_ATTENTION
    backend = SDPBackend.CUDNN_ATTENTION if case.mode == "cudnn" else flash
    if case.device == "cpu":
        backend = SDPBackend.MATH
    back = "backward" in name
    # Tokens before heads in memory, as the projection writes them.
    q = case.inputs((batch, tokens, heads, dim), grad=back)
    k, v = (case.inputs((batch, tokens, kv, dim), grad=back) for _ in range(2))

    def fn(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v)), is_causal="causal" in name, enable_gqa=kv != heads)
    if not back:
        return forward(case, fn, q, k, v)
    dy = [t.transpose(1, 2) for t in case.inputs((batch, tokens, heads, dim))]
    return backward(case, fn, [q, k, v], [], [dy])


@op("product forward", "product forward bias", "product input gradient", "product weight gradient",
    modes=("eager",))
def product(case, name):
    m, n, k = case.shape
    made = {"x": (m, k), "w": (n, k), "dy": (m, n)}
    buffers = {}
    for which, shape in made.items():
        case.sets = case.cold_sets(shape)
        if which in {"forward": "xw", "input": ("dy", "w"), "weight": ("dy", "x")}[name.split()[1]]:
            buffers[which] = case.inputs(shape)
    if name == "product input gradient":
        return forward(case, torch.mm, buffers["dy"], buffers["w"])
    if name == "product weight gradient":
        return forward(case, lambda dy, x: torch.mm(dy.t(), x), buffers["dy"], buffers["x"])
    bias = uniform((n,), case.dtype, case.device) if name.endswith("bias") else None
    return forward(case, lambda x, w: F.linear(x, w, bias), buffers["x"], buffers["w"])


@op("head and loss")
def head_and_loss(case, name):
    rows, classes, width = case.shape
    x, weight = (uniform(s, case.dtype, case.device).requires_grad_() for s in ((rows, width), (classes, width)))
    targets = torch.randint(classes, (rows,), device=case.device)
    fn = case.compiled(lambda x, w: F.cross_entropy(F.linear(x, w), targets))
    return lambda i: torch.autograd.grad(fn(x, weight), [x, weight])


@op("product forward bias gelu", "product weight and bias gradient", "product gelu gradient")
def mlp_product(case, name):
    m, n, k = case.shape

    def made(*shape):
        case.sets = case.cold_sets(shape)
        return case.inputs(shape)

    if name == "product forward bias gelu":
        bias = uniform((n,), case.dtype, case.device)

        def hidden_layer(x, w):
            hidden = F.linear(x, w, bias)
            return hidden, F.gelu(hidden, approximate="tanh")
        return forward(case, hidden_layer, made(m, k), made(n, k))
    if name == "product weight and bias gradient":
        return forward(case, lambda dy, x: (torch.mm(dy.t(), x), dy.sum(0)), made(m, n), made(m, k))

    def gelu_gradient(dy, w, hidden):
        d = torch.ops.aten.gelu_backward(torch.mm(dy, w), hidden, approximate="tanh")
        return d, d.sum(0)
    return forward(case, gelu_gradient, made(m, k), made(k, n), made(m, n))


def overhead(chain, device, synchronize):
    """Named functions that launch `chain` ops on the GPU and return their start time."""
    x, w, dy = (uniform((16,), torch.float32, device) for _ in range(3))
    leaf = x.clone().requires_grad_()

    def adds(y):
        for _ in range(chain):
            y = y + w
        return y

    def plain():
        start = time.perf_counter()
        with torch.no_grad():
            adds(x)
        return start

    def recorded():
        start = time.perf_counter()
        adds(leaf)
        return start

    def back():
        y = adds(leaf)
        synchronize()
        start = time.perf_counter()
        torch.autograd.grad(y, leaf, dy)
        return start

    def allocate(size):
        def run():
            start = time.perf_counter()
            for _ in range(chain):
                torch.empty(size, dtype=torch.uint8, device=device)
            return start
        return run

    named = {"add of 16": plain, "add of 16, recorded": recorded, "add of 16, backward": back}
    for size in (1 << 10, 1 << 20, 1 << 26):
        named[f"allocate and free {size} bytes"] = allocate(size)
    return named
