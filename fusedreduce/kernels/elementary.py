"""The text of the printed elementary functions: exp, log, trigonometric, hyperbolic, erfc, power.

Errors were measured against mpmath on the grid of `tests/interpreter/test_functions.py`, in the
interpreter and on an H200 (Triton 3.6.0): at most 4 ulp in float32 and in float64, except
    sigmoid, softplus   below -10 in float32: the error of tl.exp, on GPUs up to |x| / 1.6 ulp
    floor_mod           a quotient beyond 2^24 (2^53) has no digits left in its remainder
On GPUs tl.exp2, tl.sqrt and tl.rsqrt flush subnormal numbers to zero in float32. -x is 0 - x in
Triton, so that -0 of 0 is 0: where the sign counts, it is r * -1.0.
"""

ELEMENTARY = """
@triton.jit
def exp_scaled(x, scale):  # 2^scale exp(x): x = k log 2 + r, then exp(r) 2^(k + scale)
    x = tl.where(x > 1000.0, 1000.0, tl.where(x < -1000.0, -1000.0, x))
    k = tl.floor(x * 1.4426950408889634 + 0.5)
    if x.dtype == tl.float64:
        r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    else:
        r = (x - k * 0.693359375) + k * 2.12194440e-4
    k += scale
    half = tl.floor(0.5 * k)
    return tl.exp(r) * tl.exp2(half) * tl.exp2(k - half)


@triton.jit
def expm1(x):  # (u - 1) x / log u with u = exp x, near 0 (Kahan)
    u = exp_scaled(x, 0)
    near = (u - 1.0) * (x / tl.log(u))
    return tl.where(u == 1.0, x, tl.where(tl.abs(x) < 0.5, near, u - 1.0))


@triton.jit
def log1p(x):  # log(u) x / (u - 1) with u = 1 + x (Kahan)
    u = 1.0 + x
    y = tl.log(u) * (x / (u - 1.0))
    return tl.where(u == 1.0, x, tl.where(u == float("inf"), u, y))


@triton.jit
def log10(x):
    return tl.log(x) * 0.4342944819032518


@triton.jit
def sigmoid(x):  # by exp(-|x|), which never overflows
    z = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, z) / (1.0 + z)


@triton.jit
def softplus(x):  # log(1 + exp x) = max(x, 0) + log1p(exp(-|x|))
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def sinh(x):  # by expm1 below 1, by exp(|x|) / 2 above
    a = tl.abs(x)
    e = expm1(a)
    t = exp_scaled(a, -1)
    return odd(x, tl.where(a < 1.0, 0.5 * (e + e / (e + 1.0)), t - 0.25 / t))


@triton.jit
def cosh(x):  # by exp(|x|) / 2
    t = exp_scaled(tl.abs(x), -1)
    return t + 0.25 / t


@triton.jit
def tanh(x):  # a rational function below 0.625 (Cephes), 1 - 2 / (exp(2 |x|) + 1) above
    a = tl.abs(x)
    z = x * x
    if x.dtype == tl.float64:
        p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z
        q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z
        r = (p - 1.61468768441708447952e3) / (q + 4.84406305325125486048e3)
    else:
        r = (-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2
        r = (r * z + 1.33314422036e-1) * z - 3.33332819422e-1
    return tl.where(a < 0.625, x * (1.0 + z * r), odd(x, 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)))


@triton.jit
def asinh(x):  # log(a + sqrt(a^2 + 1)), a = |x|, by log1p; log a + log 2 where a^2 overflows
    a = tl.abs(x)
    near = log1p(a + a * (a / (1.0 + tl.sqrt(a * a + 1.0))))
    return odd(x, tl.where(a > 1e9, tl.log(a) + 0.6931471805599453, near))


@triton.jit
def acosh(x):  # log(x + sqrt(x^2 - 1)), by log1p of t = x - 1
    t = x - 1.0
    near = log1p(t + tl.sqrt(t * (t + 2.0)))
    y = tl.where(x > 1e9, tl.log(x) + 0.6931471805599453, near)
    return tl.where(x >= 1.0, y, float("nan"))


@triton.jit
def atanh(x):  # log((1 + a) / (1 - a)) / 2, a = |x|, by log1p
    a = tl.abs(x)
    return odd(x, 0.5 * log1p(2.0 * a / (1.0 - a)))


@triton.jit
def tan(x):
    return tl.sin(x) / tl.cos(x)


@triton.jit
def atan(x):  # moved to |z| < tan(pi / 8), then a polynomial or rational function (Cephes)
    a = tl.abs(x)
    far = a > 2.414213562373095
    mid = (a > 0.4142135623730951) & (a <= 2.414213562373095)
    z = tl.where(far, -1.0 / a, tl.where(mid, (a - 1.0) / (a + 1.0), a))
    s = z * z
    turn = far.to(x.dtype) + 0.5 * mid.to(x.dtype)
    if x.dtype == tl.float64:
        low = turn * 6.123233995736765886130e-17
        p = (-8.750608600031904122785e-1 * s - 1.615753718733365076637e1) * s
        p = ((p - 7.500855792314704667340e1) * s - 1.228866684490136173410e2) * s
        q = ((s + 2.485846490142306297962e1) * s + 1.650270098316988542046e2) * s
        q = ((q + 4.328810604912902668951e2) * s + 4.853903996359136964868e2) * s
        r = (p - 6.485021904942025371773e1) / (q + 1.945506571482613964425e2)
    else:
        low = turn * -4.371139000186241e-8
        r = (8.05374449538e-2 * s - 1.38776856032e-1) * s + 1.99777106478e-1
        r = r * s - 3.33329491539e-1
    return odd(x, turn * 1.5707963267948966 + (z + (z * (s * r) + low)))


@triton.jit
def atan2(y, x):  # the angle of (x, y), the signs of zeros counted
    a = tl.abs(y)
    b = tl.abs(x)
    slope = tl.where(a == b, tl.where(a == 0.0, 0.0, 1.0), a / b)
    r = atan(tl.where((a != a) | (b != b), x + y, slope))
    left = (x < 0) | ((x == 0) & (1.0 / x < 0))
    down = (y < 0) | ((y == 0) & (1.0 / y < 0))
    r = tl.where(left, 3.141592653589793 - r, r)
    return tl.where(down, r * -1.0, r)  # -r would be 0 - r


@triton.jit
def asin(x):
    return atan2(x, tl.sqrt((1.0 - x) * (1.0 + x)))


@triton.jit
def acos(x):
    return atan2(tl.sqrt((1.0 - x) * (1.0 + x)), x)


@triton.jit
def erfc(x):  # exp(-a^2) p(t) / (1 + 2 a), a = |x|, t = (a - c) / (a + c); a^2 in two exact parts
    a = tl.abs(x)
    if x.dtype == tl.float64:
        a = tl.where(a > 28.0, 28.0, a)
        t = (a - 4.0) / (a + 4.0)
        p = (-8.90620866393462229e-9 * t - 9.45627152491569159e-9) * t + 1.01812474751499711e-7
        p = (p * t + 5.88323063291443501e-8) * t - 8.18766256291578559e-7
        p = (p * t + 3.09944020108315453e-7) * t + 5.70682747506826368e-6
        p = (p * t - 1.1232086023404734e-5) * t - 2.4398609353512904e-5
        p = (p * t + 1.5062567141369432e-4) * t - 1.99256696404256237e-4
        p = (p * t - 7.57774306169337074e-4) * t + 5.03196995232915292e-3
        p = (p * t - 1.61977338959598549e-2) * t + 3.71675155424207577e-2
        p = (p * t - 6.63303658272927898e-2) * t + 9.3732834997984629e-2
        p = (p * t - 1.01039066035580629e-1) * t + 6.80970542547021274e-2
        p = (p * t + 1.53796521026061327e-2) * t - 1.39621116840562555e-1
        p = p * t + 1.23299511862555255
    else:
        a = tl.where(a > 11.0, 11.0, a)
        t = (a - 2.0) / (a + 2.0)
        p = (3.29297882453304842e-5 * t - 3.50061970642287807e-4) * t - 1.24907663906596982e-3
        p = (p * t + 1.26266341225371611e-3) * t + 8.6318180706861821e-3
        p = (p * t - 8.0424814142134418e-3) * t - 5.42032074790347102e-2
        p = (p * t + 1.64053104440159482e-1) * t - 1.66031526038491522e-1
        p = (p * t - 9.27639027940156598e-2) * t + 1.27697839416988879
    high = tl.floor(16.0 * a) * 0.0625
    y = tl.exp((high - a) * (high + a)) * (p / (1.0 + 2.0 * a))
    y *= exp_scaled(-high * high, 0)
    return tl.where(x < 0, 2.0 - y, y)


@triton.jit
def whole_power(x, n):  # integers, by repeated squaring; 0, 1 or -1 for a negative exponent
    r = tl.where(n < 0, tl.where(tl.abs(x) == 1, 1, 0), 1).to(x.dtype)
    sign_only = tl.where(n < 0, tl.where(tl.abs(x) == 1, x, 0), x)
    for bit in tl.static_range(x.dtype.primitive_bitwidth - 1):
        r = tl.where((n >> bit) & 1 != 0, r * sign_only, r)
        sign_only *= sign_only
    return r


@triton.jit
def head(x):  # the leading half of the digits: products of two heads are exact
    if x.dtype == tl.float64:
        return (x.to(tl.int64, bitcast=True) & -134217728).to(tl.float64, bitcast=True)
    else:
        return (x.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)


@triton.jit
def real_power(x, y):  # 2^(y (e + L)), |x| = 2^e m, L = log2 m as the sum of a head and a rest
    a = tl.abs(x)
    e = tl.floor(tl.log2(a) + 0.5)
    half = tl.floor(0.5 * e)
    m = a * tl.exp2(-half) * tl.exp2(half - e)
    # log2 m = (2 / log 2) atanh s with s = (m - 1) / (m + 1)
    s = head((m - 1.0) / (m + 1.0))
    g = head(m + 1.0)
    s_rest = ((m - 1.0 - s * g) - s * (m - g + 1.0)) / (m + 1.0)
    z = (s + s_rest) * (s + s_rest)
    if x.dtype == tl.float64:
        first = 2.885390043258667 * s
        log_rest = 3.851925982253234936e-08 * s
        p = ((z / 23 + 1 / 21) * z + 1 / 19) * z + 1 / 17
        p = (((p * z + 1 / 15) * z + 1 / 13) * z + 1 / 11) * z + 1 / 9
        p = ((p * z + 1 / 7) * z + 1 / 5) * z + 1 / 3
    else:
        first = 2.884765625 * s
        log_rest = 6.244567779268147198e-04 * s
        p = ((z / 9 + 1 / 7) * z + 1 / 5) * z + 1 / 3
    log_rest += 2.8853900817779268 * (s_rest + (s + s_rest) * (z * p))
    log_head = head(first + log_rest)
    log_rest += first - log_head
    t = y * tl.log2(a)
    k = tl.floor(t + 0.5)
    y_head = head(y)
    r = (y_head * e - k) + y_head * log_head
    r = tl.exp2(r + ((y - y_head) * e + ((y - y_head) * log_head + y * log_rest)))
    half = tl.floor(0.5 * k)
    r = r * tl.exp2(half) * tl.exp2(k - half)
    r = tl.where(t > 1200.0, float("inf"), tl.where(t < -1200.0, 0.0, r))
    r = tl.where(a == 1.0, tl.where(y == y, 1.0, y), r)
    whole = tl.floor(y) == y
    uneven = whole & (tl.floor(0.5 * y) != 0.5 * y)
    negative = (x < 0) | ((x == 0) & (1.0 / x < 0))
    r = tl.where(negative & uneven, r * -1.0, r)
    r = tl.where((x < 0) & (a < float("inf")) & (whole == 0), float("nan"), r)
    return tl.where((y == 0) | (x == 1.0), 1.0, r)


@triton.jit
def power(x, y):
    zero = tl.zeros_like(x + y)  # a constant argument takes the type of the other
    if zero.dtype.is_int():
        return whole_power(x - zero, y - zero)
    else:
        return real_power(x - zero, y - zero)
"""
