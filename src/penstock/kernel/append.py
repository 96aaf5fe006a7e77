"""Jobs without anything of their own go into the packed columns, by whole runs.

Nothing here is done per job where jobs are alike: 1,000 jobs cost a few extensions of byte arrays.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.blocks import SIZE, Block
from penstock.kernel.codes import BYTE, FIRST_CLASS, HELD, LIFO, READY, SCHEDULED
from penstock.kernel.commands import Load, due
from penstock.model.answers import PushedRun

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue


def append_plain(
    kernel: "Kernel", queue: "Queue", load: Load, first: int | None = None
) -> PushedRun:
    """Jobs without anything of their own, by whole columns. `first`: where ids are reserved."""
    ends = load.ends
    n = len(ends)
    now = kernel.now
    if first is None:
        queue.begin_anew()
        first = queue.reserve(n)
    whole = None  # the block that all of them lie in, if they are alike
    ready = 0
    if load.delay_ms is not None or load.run_at is not None:
        _append_delayed(kernel, queue, load, first, now)
    else:
        ready = queue.clamp(now)
        if ready == now:
            ready = 0  # as created
        index = 0
        while index < n:
            block = queue.block_for(first + index)
            m = min(n - index, SIZE - len(block.codes))
            _append_run(kernel, queue, block, load, index, m, now, ready)
            if m == n and load.option_of is None:
                whole = block
            index += m
    chunks = kernel.chunks
    chunks[load.chunk] = chunks.get(load.chunk, 0) + n
    if queue.bounded:
        raise_bounds(queue, n, ends[-1])
    if kernel.events is not None:
        if whole is not None:  # a quarter of what a run of 10 to 100 jobs costs to append
            tell.pushed_alike(kernel, whole, first - whole.base, n, ready or now, ends[-1])
        else:
            tell.pushed(kernel, queue, first, n)
    if queue.watched:
        kernel.stirred[queue] = None
    return PushedRun(first, n)


def append_held(kernel: "Kernel", queue: "Queue", load: Load, first: int) -> PushedRun:
    """The same for jobs of a bulk: they lie in their places, held."""
    n = len(load.ends)
    index = 0
    while index < n:
        block = queue.block_for(first + index)
        m = min(n - index, SIZE - len(block.codes))
        position = len(block.codes)
        if load.option_of is None:
            extend_options(block, block.option(load.options[0]), m)
        else:
            part = load.option_of[index : index + m]
            numbers = {which: block.option(load.options[which]) for which in sorted(set(part))}
            block.opts.extend(numbers[which] for which in part)
        block.codes += BYTE[HELD] * m
        block.note_created(position, kernel.now)
        if isinstance(load.run_at, Sequence):
            for at in range(m):
                block.note_due(position + at, due(load.run_at, None, index + at, kernel.now) or 0)
        else:
            block.note_due(position, due(load.run_at, None, 0, kernel.now) or 0)
        _append_payloads(block, load, index, m, position)
        block.live += m
        index += m
    queue.counts[HELD] += n
    kernel.chunks[load.chunk] = kernel.chunks.get(load.chunk, 0) + n
    if queue.bounded:
        raise_bounds(queue, n, load.ends[-1])
    if kernel.events is not None:
        tell.pushed(kernel, queue, first, n, held=True)
    return PushedRun(first, n)


def raise_bounds(queue: "Queue", n: int, size: int) -> None:
    queue.bytes += size
    queue.tenant.live += n
    queue.tenant.bytes += size


def append_ready(kernel: "Kernel", queue: "Queue", load: Load) -> PushedRun:
    """Ready jobs that are alike: the hot path of small pushes, written flat because calls cost more
    than what is done."""
    ends = load.ends
    n = len(ends)
    block = queue.open
    if block is None or len(block.codes) + n > SIZE:
        return append_plain(kernel, queue, load)
    now = kernel.now
    if block.era != kernel.era:
        block.touch()
    codes = block.codes
    position = len(codes)
    first = block.base + position
    options = load.options[0]
    index = block.last_index if options is block.last_options else block.option(options)
    code = block.code_of[index]
    if block.last_created != now:
        block.created_pos.append(position)
        block.created_ms.append(now)
        block.last_created = now
    ready = 0  # as created
    if now >= queue.ready_clock:
        queue.ready_clock = now
    elif queue.clamp(now) != now:
        ready = queue.ready_clock
    if ready or block.due_ms:
        block.note_due(position, -ready)
    size = ends[-1]
    chunk = load.chunk
    start = load.start
    if n > 1:
        codes += BYTE[code] * n
        extend_options(block, index, n)
        block.note_payload(position, chunk, start, 0)
        block.ends.extend(ends)
    else:
        codes.append(code)
        block.opts.append(index)
        if chunk == block.tail_chunk and start == block.tail:
            block.ends.append(block.ends[-1] + size)
        else:
            append_payload(block, position, chunk, start, size)
            block.tail_chunk = chunk
        block.tail = start + size
    block.live += n
    chunks = kernel.chunks
    chunks[chunk] = chunks.get(chunk, 0) + n
    queue.counts[READY] += n
    if code < FIRST_CLASS:
        _line_up(queue, options.priority, code, ready or now, first, n)
    if options.ttl_ms is not None:
        kernel.expire_at(now + options.ttl_ms, first, n)
    if kernel.events is not None:
        tell.pushed_alike(kernel, block, position, n, ready or now, size)
    if queue.watched:
        kernel.stirred[queue] = None
    return PushedRun(first, n)


def _line_up(
    queue: "Queue", priority: int, code: int, ready: int, first: int, span: int = 1
) -> None:
    """Ready jobs that no cursor finds: lifo ones, and those of too many priorities."""
    lane = queue.lane(priority)
    (lane.put_lifo if code == LIFO else lane.put)(ready, first, span)


def append_payload(block: Block, position: int, chunk: int, start: int, size: int) -> None:
    """One payload at the end of the columns; it goes on with the last record if it can."""
    if block.pay_chunk and block.pay_chunk[-1] == chunk:
        before = block.ends[-1]
        if start == block.pay_origin[-1] + before:
            block.tail_chunk = 0
            block.ends.append(before + size)
            return
    block.note_payload(position, chunk, start, 0)
    block.ends.append(size)


def _append_run(
    kernel: "Kernel",
    queue: "Queue",
    block: Block,
    load: Load,
    index: int,
    m: int,
    now: int,
    ready: int,
) -> None:
    """m ready jobs from `index` on, all into this block."""
    position = len(block.codes)
    option_of = load.option_of
    if option_of is None:
        number = block.option(load.options[0])
        code = block.code_of[number]
        block.codes += BYTE[code] * m
        extend_options(block, number, m)
        if code < FIRST_CLASS:
            priority = load.options[0].priority
            _line_up(queue, priority, code, ready or now, block.base + position, m)
    else:
        _append_mixed(queue, block, load, index, m, ready or now)
    block.note_created(position, now)
    if ready or block.due_ms:
        block.note_due(position, -ready)
    _append_payloads(block, load, index, m, position)
    block.live += m
    queue.counts[READY] += m
    for options in load.options:
        if options.ttl_ms is not None:
            kernel.expire_at(now + options.ttl_ms, block.base + position, m)


def extend_options(block: Block, number: int, m: int) -> None:
    if isinstance(block.opts, bytearray):
        block.opts += BYTE[number] * m
    else:
        block.opts.extend([number] * m)


def _append_mixed(queue: "Queue", block: Block, load: Load, index: int, m: int, ready: int) -> None:
    """Codes and option indices of jobs with several option sets, by translation tables."""
    assert load.option_of is not None
    part = load.option_of[index : index + m]
    position = len(block.codes)
    if len(load.options) <= 16:  # a search each is cheaper than a set of the whole part
        used = [which for which in range(len(load.options)) if which in part]
    else:
        used = sorted(set(part))
    numbers = {which: block.option(load.options[which]) for which in used}
    if isinstance(block.opts, bytearray) and isinstance(part, bytes):
        to_number, to_code = bytearray(256), bytearray(256)
        for which, number in numbers.items():
            to_number[which] = number
            to_code[which] = block.code_of[number]
        block.opts += part.translate(to_number)
        block.codes += part.translate(to_code)
    else:
        block.opts.extend(numbers[which] for which in part)
        block.codes.extend(block.code_of[numbers[which]] for which in part)
    if all(block.code_of[number] >= FIRST_CLASS for number in numbers.values()):
        return
    for offset in range(position, position + m):
        code = block.codes[offset]
        if code < FIRST_CLASS:
            priority = block.options[block.opts[offset]].priority
            _line_up(queue, priority, code, ready, block.base + offset)


def _append_payloads(block: Block, load: Load, index: int, m: int, position: int) -> None:
    ends = load.ends
    before = ends[index - 1] if index else 0
    block.note_payload(position, load.chunk, load.start, before)
    block.ends.extend(ends if m == len(ends) else ends[index : index + m])


def _append_delayed(kernel: "Kernel", queue: "Queue", load: Load, first: int, now: int) -> None:
    """Jobs that may lie ahead: one instant for all, or one each."""
    n = len(load.ends)
    index = 0
    while index < n:
        block = queue.block_for(first + index)
        m = min(n - index, SIZE - len(block.codes))
        position = len(block.codes)
        block.note_created(position, now)
        _append_payloads(block, load, index, m, position)
        block.live += m
        at = index
        while at < index + m:
            until = due(load.run_at, load.delay_ms, at, now)
            alike = at + 1
            if load.option_of is None and _one_for_all(load):
                alike = index + m
            _append_due(kernel, queue, block, load, at, alike - at, now, until)
            at = alike
        for options in load.options:
            if options.ttl_ms is not None:
                kernel.expire_at(now + options.ttl_ms, block.base + position, m)
        index += m


def _one_for_all(load: Load) -> bool:
    return not isinstance(load.delay_ms, Sequence) and not isinstance(load.run_at, Sequence)


def _append_due(
    kernel: "Kernel",
    queue: "Queue",
    block: Block,
    load: Load,
    index: int,
    m: int,
    now: int,
    until: int | None,
) -> None:
    """m jobs with one option set that are due at `until` (None: now)."""
    position = len(block.codes)
    options = load.option(index)
    number = block.option(options)
    extend_options(block, number, m)
    if until is not None:
        block.codes += BYTE[SCHEDULED] * m
        block.note_due(position, until)
        queue.counts[SCHEDULED] += m
        kernel.promote_at(until, block.base + position, m)
        return
    ready = queue.clamp(now)
    code = block.code_of[number]
    block.codes += BYTE[code] * m
    block.note_due(position, 0 if ready == now else -ready)
    queue.counts[READY] += m
    if code < FIRST_CLASS:
        _line_up(queue, options.priority, code, ready or now, block.base + position, m)
