"""
Turns text into token files that train.py reads: data/NAME/{train.bin, val.bin, meta.json}.

    python prepare.py                             # lists the data sets and what is there
    python prepare.py arithmetic                  # made on the spot, no network
    python prepare.py shakespeare --tokenizer=char
    python prepare.py fineweb --max_tokens=1e7    # fetches only the bytes that it needs
    python prepare.py mine --files="notes/**/*.txt"
    python prepare.py all

A .bin file is little-endian uint16 without a header. Every document ends with the end mark (in
the fineweb shards it stands before each, as they come); a data set of one document has no mark.
The default tokenizer goes to data/NAME, another one to data/NAME_char, _byte or _gpt2.

Text is UTF-8 whatever the locale, and is never edited: CRLF stays, "<|endoftext|>" inside a
document is ordinary text, a line may have any length (GPT-2 only: a run of more than 64 Ki
characters without a blank is cut there). A byte order mark at the start is dropped. Invalid UTF-8
stops with file and offset, an empty file is left out, one character alone cannot be split and is
refused. --files are one document each, in the order of their names; training gets the first 90 %
of all bytes, moved back to the start of a character (a file across that border counts twice).
"""
import array
import ast
import codecs
import collections
import contextlib
import difflib
import functools
import glob
import hashlib
import itertools
import json
import math
import os
import platform
import random
import re
import shutil
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import configurator

# --------------------------------------------------------------------------------------------------
# flags: every setting with its default; on the command line --name=value
# --------------------------------------------------------------------------------------------------
tokenizer = ""           # gpt2, char, byte; "" is gpt2, or char for the data sets made here
max_tokens = ""          # training tokens at most, such as 1e6; "" is the data set's own limit
mirror = ""              # folder or URL that holds the downloads by their base names
verify = "auto"          # published sizes and hashes: True, False, auto (True unless mirrored)
difficulty = "easy"      # math only: easy, medium, hard
files = ""               # your own text: a pattern such as "notes/**/*.txt"
retries = 5              # how often a failing download is tried again, each address
data_dir = os.path.join(os.path.dirname(os.path.realpath(__file__)), "data")  # where all goes

FLAGS = {k: v for k, v in globals().items() if k[0] != "_" and isinstance(v, (int, str))}

BLOCK = 2**20            # bytes per read
PIECE = 2**16            # characters per piece of a long document
SPLITS = ("train", "val")


def say(text, end="\n"):
    """Print even what the terminal's encoding does not know."""
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)


def make_progress(label, unit, total=None):
    """A function of the amount done that prints rate and remaining time now and then."""
    start = last = time.time()
    pause = 1 if sys.stdout.isatty() else 15

    def show(done):
        nonlocal last
        if time.time() - last < pause:
            return
        last, rate = time.time(), done / (time.time() - start)
        left = f", {(total - done) / rate:.0f} s left" if total and rate else ""
        say(f"{label}: {done / 1e6:.1f} M{unit}, {rate / 1e6:.2f} M{unit}/s{left}",
            end="    \r" if sys.stdout.isatty() else "\n")
    return show


# --------------------------------------------------------------------------------------------------
# tokenizers: text -> uint16 ids
# --------------------------------------------------------------------------------------------------
@functools.lru_cache
def load_gpt2():
    """tiktoken's GPT-2 encoding; needs its two files in the cache, or a network."""
    import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:
        raise SystemExit(f"the GPT-2 vocabulary cannot be loaded: {error}")


def describe_tokenizer(name, chars="", many=True):
    """The part of meta.json that says what an id means; many: are there several documents?"""
    if name == "gpt2":
        gpt2 = load_gpt2()
        n_byte = [len(gpt2.decode_single_token_bytes(i)) for i in range(gpt2.n_vocab - 1)] + [0]
        end_mark = gpt2.eot_token
    else:
        n_byte = [1] * 256 if name == "byte" else [len(char.encode()) for char in chars]
        end_mark = len(n_byte) if many else None
        n_byte += [0] * many
    fingerprint = hashlib.sha256(f"{name} {chars or len(n_byte)}".encode()).hexdigest()
    meta = {"tokenizer": name, "fingerprint": fingerprint, "vocab_size": len(n_byte),
            "end_mark": end_mark, "bytes_per_token": n_byte}
    if len(n_byte) > 2**16:
        raise SystemExit(f"{len(n_byte)} different characters do not fit 16 bits; use gpt2 or byte")
    return {**meta, "chars": chars} if name == "char" else meta


def make_encoder(meta):
    """A function from a text to the array of its ids, without any mark."""
    if meta["tokenizer"] == "gpt2":
        gpt2 = load_gpt2()
        return lambda text: gpt2.encode_to_numpy(text, disallowed_special=())
    if meta["tokenizer"] == "byte":
        return lambda text: np.frombuffer(text.encode(), np.uint8)
    table = np.full(0x110000, meta["vocab_size"])       # an unknown character is caught later
    table[[ord(char) for char in meta["chars"]]] = np.arange(len(meta["chars"]))
    return lambda text: table[np.frombuffer(text.encode("utf-32-le"), "<u4")]


def find_alphabet(read, many, limit):
    """All characters of both splits, by code point; read(split) gives (text, ends) pieces."""
    seen = {split: np.zeros(0x110000, bool) for split in SPLITS}
    for split in SPLITS:
        room = limit if split == "train" else math.inf
        for text, ends in read(split):
            text = text[:room] if len(text) > room else text
            seen[split][np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
            room -= len(text) + (many and ends)
            if room <= 0:
                break
    chars = "".join(map(chr, np.flatnonzero(seen["train"] | seen["val"])))
    n_new = np.count_nonzero(seen["val"] & ~seen["train"])
    say(f"alphabet of {len(chars)} characters, {n_new} of them only in val")
    return chars


# --------------------------------------------------------------------------------------------------
# writing: pieces of text -> .bin files, meta.json, a finished folder
# --------------------------------------------------------------------------------------------------
def group_pieces(pieces, n_char=2**19):
    """Lists of pieces worth a thread's while, cut where a document ends if possible."""
    batch, size = [], 0
    for piece, ends in pieces:
        batch.append((piece, ends))
        size += len(piece)
        if size >= n_char and (ends or size >= 2 * n_char):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode_batch(batch, encode, meta, mark):
    """Ids of a batch with its end marks, and the number of ids of every piece."""
    parts, lengths = [], []
    for piece, ends in batch:
        ids = encode(piece) if isinstance(piece, str) else piece     # shards are ids already
        parts.append(ids)
        if ends and mark is not None:
            parts.append([mark])
        lengths.append(len(ids) + (ends and mark is not None))
    ids = np.concatenate(parts)
    if len(ids) and ids.max() >= meta["vocab_size"]:
        raise SystemExit(f"token id {ids.max()}, but the vocabulary has {meta['vocab_size']}")
    return ids.astype("<u2"), lengths


def write_tokens(path, pieces, meta, mark, limit=math.inf, whole=False):
    """Encode (text, ends) pieces on all cores into path; returns the number of ids of every piece.

    Stops after `limit` ids, or with `whole` after the last document that fits.
    """
    n_core, waiting, lengths, room = os.cpu_count() or 1, collections.deque(), [], limit
    show = make_progress(os.path.basename(path), " tokens")
    encode = make_encoder(meta)
    with open(path, "wb") as file, ThreadPoolExecutor(n_core) as pool:
        batches = group_pieces(pieces)
        while room > 0:
            while len(waiting) < 2 * n_core and (batch := next(batches, None)):
                waiting.append(pool.submit(encode_batch, batch, encode, meta, mark))
            if not waiting:
                break
            ids, counts = waiting.popleft().result()
            if len(ids) > room:
                ids = ids[:room]
                if whole:
                    ends = np.flatnonzero(ids == mark)
                    ids = ids[:ends[-1] + 1] if len(ends) else ids[:0]
                counts = np.diff(np.minimum(np.cumsum([0] + counts), len(ids)))
                room = len(ids)
            room -= len(ids)
            lengths.append(np.array(counts, np.uint32))
            file.write(ids)
            show(file.tell() / 2)
    lengths = np.concatenate(lengths or [[]])
    return lengths[lengths > 0]


def hash_file(path):
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_meta(folder, name, meta, row, **more):
    """Count and hash the two .bin files of a folder and describe them in meta.json."""
    paths = {split: os.path.join(folder, f"{split}.bin") for split in SPLITS}
    n_token = {split: os.path.getsize(path) // 2 for split, path in paths.items()}
    for split in SPLITS:
        if not n_token[split]:
            raise SystemExit(f"{name}: nothing is left for {split}; the text is too short to split")
    meta = {"dataset": name, **meta, "n_token": n_token,
            "sha256": {split: hash_file(path) for split, path in paths.items()},
            "source": row["source"], "licence": row["licence"], **more}
    with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8", newline="\n") as file:
        json.dump(meta, file)
    say(f"{name}: {n_token['train']:,} training and {n_token['val']:,} validation tokens "
        f"({meta['tokenizer']}, vocabulary {meta['vocab_size']})")


# --------------------------------------------------------------------------------------------------
# question-answer data: a folder of types, and their mix
# --------------------------------------------------------------------------------------------------
def read_pairs(path, skip=()):
    """Pieces of a file of questions and answers on alternating lines."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for question, answer in zip(file, file):
            if question not in skip:
                yield f"Question: {question[:-1]}\nAnswer:", False
                yield f" {answer[:-1]}", True


def sort_pairs(pairs, folder):
    """Write (type, split, question, answer) rows to folder/type/split.txt.

    Returns the types and the set of validation questions that occur in training.
    """
    files, seen, asked = {}, {split: array.array("q") for split in SPLITS}, []
    with contextlib.ExitStack() as stack:
        for kind, split, question, answer in pairs:
            if (kind, split) not in files:
                os.makedirs(os.path.join(folder, kind), exist_ok=True)
                path = os.path.join(folder, kind, f"{split}.txt")
                files[kind, split] = stack.enter_context(
                    open(path, "w", encoding="utf-8", newline="\n"))
            files[kind, split].write(f"{question}\n{answer}\n")
            seen[split].append(hash(question))
            if split == "val":
                asked.append(question)
    again = np.isin(np.array(seen["val"]), np.array(seen["train"]))
    return sorted({kind for kind, _ in files}), {asked[i] + "\n" for i in np.flatnonzero(again)}


def mix_types(folder, kinds, split, lengths):
    """Interleave whole pairs of the types' files: each round takes one of every type, shuffled.

    lengths[i] holds (prompt, answer) token counts of type i; returns rows (i, prompt, answer).
    """
    rng, rows = random.Random(f"mix {split}"), []
    with contextlib.ExitStack() as stack:
        def enter(path, mode):
            return stack.enter_context(open(os.path.join(folder, path), mode))
        sources = [enter(os.path.join(kind, f"{split}.bin"), "rb") for kind in kinds]
        mixed = enter(f"{split}.bin", "wb")
        for turn in range(max(map(len, lengths))):
            order = [i for i in range(len(kinds)) if turn < len(lengths[i])]
            rng.shuffle(order)
            for i in order:
                mixed.write(sources[i].read(2 * int(lengths[i][turn].sum())))
                if split == "val":
                    rows.append([i, *lengths[i][turn].tolist()])
    return rows


def write_pairs(folder, name, row, tokenizer, limit, pairs):
    """Each type becomes a data set of its own in folder/type, their mix one in folder."""
    kinds, again = sort_pairs(pairs, folder)

    def read(kind, split):
        return read_pairs(os.path.join(folder, kind, f"{split}.txt"), again if split == "val" else ())

    def read_all(split):
        return itertools.chain.from_iterable(read(kind, split) for kind in kinds)
    chars = find_alphabet(read_all, True, math.inf) if tokenizer == "char" else ""
    meta = describe_tokenizer(tokenizer, chars)
    lengths = {split: [] for split in SPLITS}
    for kind in kinds:
        here = os.path.join(folder, kind)
        for split in SPLITS:
            counts = write_tokens(os.path.join(here, f"{split}.bin"), read(kind, split), meta,
                                  meta["end_mark"], limit // len(kinds) if split == "train" and
                                  limit < math.inf else math.inf, whole=True)
            lengths[split].append(counts.reshape(-1, 2))
        rows = [[0, *pair] for pair in lengths["val"][-1].tolist()]
        write_meta(here, f"{name}/{kind}", meta, row, types=[kind], val_pairs=rows)
        answers = {split: collections.Counter(text for text, ends in read(kind, split) if ends)
                   for split in SPLITS}
        common = answers["train"].most_common(1)[0][0]
        share = answers["val"][common] / max(1, answers["val"].total())
        say(f"    {len(lengths['train'][-1]):,} and {len(rows):,} pairs, always answering"
            f"{common} is right in {share:.0%}")
    mix_types(folder, kinds, "train", lengths["train"])
    rows = mix_types(folder, kinds, "val", lengths["val"])
    write_meta(folder, name, meta, row, types=kinds, val_pairs=rows)
    say(f"    {len(again)} validation questions left out because they occur in training")
    for kind, split in itertools.product(kinds, SPLITS):
        os.remove(os.path.join(folder, kind, f"{split}.txt"))


# --------------------------------------------------------------------------------------------------
# text of any length
# --------------------------------------------------------------------------------------------------
def read_text(path, start=0, end=math.inf):
    """Text of the bytes from start to end (at most the file's size), in blocks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open(path, "rb") as file:
        if start == 0 and file.read(3) == codecs.BOM_UTF8:
            start = 3
        file.seek(start)
        while block := file.read(min(BLOCK, end - start)):
            pending = len(decoder.getstate()[0])
            try:
                yield decoder.decode(block, start + len(block) >= end)
            except UnicodeDecodeError as error:
                place = start - pending + error.start
                raise SystemExit(f"{path}: invalid UTF-8 at byte {place}; convert the file first")
            start += len(block)


def cut_pieces(texts):
    """(piece, ends) of one document given in blocks, where no GPT-2 token crosses a border.

    A token never goes on with a blank after anything else, so a cut before that blank is safe.
    """
    blank, rest = re.compile(r"\S(?=[ \n])"), ""
    for text in texts:
        rest += text
        while len(rest) > 2 * PIECE:
            found = blank.search(rest, PIECE, 2 * PIECE)
            cut = found.end() if found else PIECE
            yield rest[:cut], False
            rest = rest[cut:]
    yield rest, True


def find_border(paths, fraction):
    """(file number, byte) where `fraction` of all bytes is reached, at the start of a character."""
    sizes = [os.path.getsize(path) for path in paths]
    border, i = int(fraction * sum(sizes)), 0
    while border > sizes[i]:
        border -= sizes[i]
        i += 1
    with open(paths[i], "rb") as file:
        file.seek(max(0, border - 3))
        before = file.read(min(3, border) + 1)
    for back in range(min(3, border) + 1):
        if len(before) <= min(3, border) - back or before[min(3, border) - back] & 0xC0 != 0x80:
            return i, border - back
    return i, border


def open_texts(paths, stop=1.0):
    """read(split) over whole files: train the first 90 % of all bytes, val what follows."""
    last, end = find_border(paths, 0.9)

    def read(split):
        for i, path in enumerate(paths):
            size = os.path.getsize(path)
            low, high = (0, end if i == last else size) if i <= last else (0, 0)
            if split == "val":
                low, high = (high, size)
            if low < high:
                yield from cut_pieces(read_text(path, low, high))
    return read


# --------------------------------------------------------------------------------------------------
# the data sets, one function each
# --------------------------------------------------------------------------------------------------
def open_files(flags, limit):
    """Your own text: every file of the pattern is one document."""
    paths = sorted(p for p in glob.glob(flags["files"], recursive=True) if os.path.isfile(p))
    for path in paths:
        if not os.path.getsize(path):
            say(f"{path} is empty: left out")
    return open_texts([path for path in paths if os.path.getsize(path)])


def open_shakespeare(flags, limit):
    path = os.path.join(flags["mirror"], "input.txt")
    return open_texts([path])


def list_stdlib(keep):
    """(split, text) of the standard library's files: every tenth that `keep` likes is val."""
    root, n_kept = sysconfig.get_paths()["stdlib"], 0
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings",
                "pydoc_data", "_bundled"}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - left_out)
        for name in sorted(names):
            if not name.endswith(".py") or name.startswith("_sysconfigdata"):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                source = file.read().replace(b"\r\n", b"\n")
            is_table = sum(map(source.count, b"0123456789\\")) > len(source) / 20
            text = keep(source.decode()) if source.isascii() and not is_table else ""
            if text:
                n_kept += 1
                yield "val" if n_kept % 10 == 0 else "train", text


def list_docstrings(source):
    """(owner, its docstring statement) of the module and of every class and function."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node, node.body[0]) for node in ast.walk(ast.parse(source))
            if isinstance(node, owners) and ast.get_docstring(node, clean=False)]


def drop_docstrings(source):
    """The source text without docstrings; a body that holds nothing else becomes pass."""
    lines = source.split("\n")
    for owner, doc in sorted(list_docstrings(source), key=lambda pair: -pair[1].lineno):
        text = (lines[doc.lineno - 1][:doc.col_offset] + "pass" * (len(owner.body) == 1) +
                lines[doc.end_lineno - 1][doc.end_col_offset:])
        lines[doc.lineno - 1:doc.end_lineno] = [text] if text.strip() else []
    return "\n".join(lines).strip()


def join_docstrings(source):
    return "\n\n".join(ast.get_docstring(owner).strip() for owner, _ in list_docstrings(source))


def open_code(flags, limit):
    """The Python standard library without docstrings, tests, tables and files beyond ASCII."""
    rows = list(list_stdlib(drop_docstrings))
    return lambda split: ((text, True) for where, text in rows if where == split)


def open_prose(flags, limit):
    """The docstrings of the same files."""
    rows = list(list_stdlib(join_docstrings))
    return lambda split: ((text, True) for where, text in rows if where == split)


def ask(kind, rng):
    """(question, answer) of one type; the sizes vary so that some of each are easy."""
    a, b, c, d = (rng.randint(1, 10 ** rng.randint(1, 2) - 1) for _ in range(4))
    if kind == "algebra__sequence_next_term":
        step = rng.choice([-1, 1]) * rng.randint(1, 20)
        terms = ", ".join(str(a + i * step) for i in range(rng.randint(3, 4)))
        n_term = terms.count(",") + 1
        return rng.choice(["Next in {}?", "What follows {}?"]).format(terms), a + n_term * step
    if kind == "arithmetic__add_or_sub":
        a, b = (rng.randint(1, 10 ** rng.randint(1, 3) - 1) for _ in range(2))
        sign = rng.choice("+-")
        return rng.choice(["What is {} {} {}?", "Work out {} {} {}."]).format(a, sign, b), \
            a + b if sign == "+" else a - b
    if kind == "comparison__kth_biggest":
        values = rng.sample(range(-99, 100), rng.randint(3, 4))
        k = rng.randrange(3)
        word = rng.choice([["Biggest", "Second biggest", "Third biggest"],
                           ["Largest", "Second largest", "Third largest"]])[k]
        return f"{word} of {', '.join(map(str, values))}?", sorted(values)[-1 - k]
    if kind == "comparison__sort":
        values = rng.sample(range(-9, 100), rng.randint(3, 4))
        down = rng.random() < 0.5
        return (f"Sort {'down' if down else 'up'} {', '.join(map(str, values))}.",
                ", ".join(map(str, sorted(values, reverse=down))))
    if kind == "numbers__div_remainder":
        a, b = rng.randint(10, 999), rng.randint(3, 15)
        return rng.choice(["Remainder of {} by {}?", "What is {} mod {}?"]).format(a, b), a % b
    if kind == "numbers__gcd":
        a, b = rng.sample(range(1, 26), 2)
        scale = rng.randint(2, 20) // math.gcd(a, b) + 1
        return rng.choice(["Find the gcd of {} and {}.", "The gcd of {} and {}?"]).format(
            a * scale, b * scale), math.gcd(a, b) * scale
    if kind == "numbers__place_value":
        a, k = rng.randint(10000, 99999), rng.randrange(5)
        word = ["units", "tens", "hundreds", "thousands", "ten thousands"][k]
        return rng.choice(["The {1} of {0}?", "Which digit of {0} is {1}?"]).format(a, word), \
            str(a)[4 - k]
    if kind == "numbers__round_number":
        a, k = rng.randint(101, 9999), rng.randint(1, 2)
        word = ["ten", "hundred"][k - 1]
        unit = 10 ** k
        return rng.choice(["Round {} to the nearest {}.", "What {1} is nearest to {0}?"]).format(
            a, word), (a + unit // 2) // unit * unit
    raise AssertionError(kind)


def open_arithmetic(flags, limit):
    """Rows of eight types; no two splits share the numbers of a question of one type."""
    for kind in ("algebra__sequence_next_term", "arithmetic__add_or_sub",
                 "comparison__kth_biggest", "comparison__sort", "numbers__div_remainder",
                 "numbers__gcd", "numbers__place_value", "numbers__round_number"):
        rng, held_out, asked = random.Random(kind), set(), set()
        while len(asked) < 4750:
            question, answer = ask(kind, rng)
            numbers = tuple(sorted(re.findall(r"-?\d+", question)))
            if question in asked or len(asked) >= 250 and numbers in held_out:
                continue
            split = "val" if len(asked) < 250 else "train"
            asked.add(question)
            if split == "val":
                held_out.add(numbers)
            yield kind, split, question, answer


# name: what it holds, licence, documents, default tokenizer, limit, function
DATASETS = {
    "arithmetic": (open_arithmetic, "pairs", "char"),
    "code": (open_code, "documents", "char"),
    "prose": (open_prose, "documents", "char"),
    "shakespeare": (open_shakespeare, "text", "gpt2"),
}


def main(argv):
    name, flags = argv[0], configurator.parse(FLAGS, argv[1:])
    function, kind, default = DATASETS.get(name, (open_files, "documents", "gpt2"))
    tokenizer = flags["tokenizer"] or default
    row = {"source": "", "licence": ""}
    folder = os.path.join(flags["data_dir"], name + f"_{tokenizer}" * (tokenizer != default))
    temp = os.path.join(flags["data_dir"], f".{name}.{platform.node()}-{os.getpid()}.tmp")
    os.makedirs(temp)
    try:
        if kind == "pairs":
            write_pairs(temp, name, row, tokenizer, math.inf, function(flags, math.inf))
        else:
            read = function(flags, math.inf)
            many = kind == "documents"
            chars = find_alphabet(read, many, math.inf) if tokenizer == "char" else ""
            meta = describe_tokenizer(tokenizer, chars, many)
            mark = meta["end_mark"] if many else None
            for split in SPLITS:
                write_tokens(os.path.join(temp, f"{split}.bin"), read(split), meta, mark)
            write_meta(temp, name, meta, row)
        if os.path.exists(folder):
            shutil.rmtree(folder)
        os.rename(temp, folder)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
