"""
Turns text into the token files that train.py reads: data/NAME/{train.bin, val.bin, meta.json}.

    python prepare.py                             # lists the data sets and what is there
    python prepare.py arithmetic                  # made on the spot, no network
    python prepare.py fineweb --max_tokens=1e7    # fetches only the bytes that it needs
    python prepare.py mine --files="notes/**/*.txt" --tokenizer=char
    python prepare.py all                         # all that are not there yet

A .bin file is little-endian uint16 without a header. Every document ends with the end mark (in
the fineweb shards it stands before each, as they come); one long text alone has no mark. The
default tokenizer goes to data/NAME, another one to data/NAME_char, data/NAME_byte, data/NAME_gpt2.

Text is UTF-8 whatever the locale and is not edited: CRLF stays, "<|endoftext|>" in a document is
ordinary text, lines may have any length (for GPT-2, 32 Ki without a blank are cut). A byte order
mark is dropped. Invalid UTF-8 stops with file and offset. Each of --files is a document, in the
order of their names; an empty one is left out. Training gets the first 90 % of all bytes, up to
the start of a character; one character alone is refused.
"""
import ast
import collections
import difflib
import functools
import glob
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import requests

import configurator

# --------------------------------------------------------------------------------------------------
# flags: every setting with its default, on the command line --name=value
# --------------------------------------------------------------------------------------------------
tokenizer = ""           # gpt2, char, byte; "" is char for the three made here, gpt2 for the rest
max_tokens = 10**12      # training tokens at most; where not given, fineweb and math stop at 10**8
mirror = ""              # folder or address that holds the downloads by their base names
verify = False           # check the published sizes and hashes behind a mirror too
difficulty = "easy"      # of math: easy, medium, hard
files = ""               # your own text, a pattern such as notes/**/*.txt
retries = 4              # how often each address of a download is tried again
data_dir = os.path.join(os.path.dirname(os.path.realpath(__file__)), "data")  # downloads: raw/

FLAGS = {k: v for k, v in globals().items() if k[0] != "_" and isinstance(v, (int, str))}


# --------------------------------------------------------------------------------------------------
# token files: everywhere, read(split) gives pairs (piece of text, does a document end with it?)
# --------------------------------------------------------------------------------------------------
def load_gpt2():
    """tiktoken's GPT-2 encoding; needs two files in its cache folder, or the network."""
    import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:          # whatever the network, a proxy or the cache comes up with
        cache = (os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR") or
                 os.path.join(tempfile.gettempdir(), "data-gym-cache"))
        base, advice = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/", ""
        for name, start in (("vocab.bpe", "1ce16647"), ("encoder.json", "19613966")):
            path = os.path.join(cache, hashlib.sha1((base + name).encode()).hexdigest())
            if not os.path.exists(path) or not hash_file(path).startswith(start):
                advice += f"; {path} is missing or damaged, put {base}{name} there"
        raise SystemExit(f"no GPT-2 vocabulary ({type(error).__name__}){advice}") from None


def make_tokenizer(name, read):
    """Its part of meta.json, and a function from a piece of text to its ids."""
    chars, many = "", name == "gpt2" or any(ends for _, ends in read("val"))
    if name == "gpt2":
        gpt2 = load_gpt2()
        n_byte = [len(gpt2.decode_single_token_bytes(i)) for i in range(50256)]
        encode = functools.partial(gpt2.encode_to_numpy, disallowed_special=())
    elif name == "byte":
        n_byte, encode = [1] * 256, lambda piece: np.frombuffer(piece.encode(), np.uint8)
    else:
        seen = np.zeros(0x110000, bool)
        for piece, _ in itertools.chain(read("train"), read("val")):
            seen[np.frombuffer(piece.encode("utf-32-le"), "<u4")] = True
        chars, table = "".join(map(chr, np.flatnonzero(seen))), np.cumsum(seen) - 1
        n_byte = [len(char.encode()) for char in chars]
        encode = lambda piece: table[np.frombuffer(piece.encode("utf-32-le"), "<u4")]
    n_byte += [0] * many                                # the end mark
    if len(n_byte) > 2**16:
        raise SystemExit(f"{len(n_byte)} characters do not fit into 16 bits; use --tokenizer=byte")
    fingerprint = hashlib.sha256(f"{name} {chars or len(n_byte)}".encode()).hexdigest()
    return {"tokenizer": name, "fingerprint": fingerprint, "vocab_size": len(n_byte), **(
        {"chars": chars} if chars else {}), "bytes_per_token": n_byte,
        "end_mark": len(n_byte) - 1 if many else None}, encode


def write_tokens(path, pieces, encode, meta, limit):
    """Encode pieces on all cores into path, at most `limit` ids; returns their number per piece."""
    def encode_batch(batch):
        ids = [encode(piece) if isinstance(piece, str) else piece for piece, _ in batch]
        ids = [np.append(i, meta["end_mark"]) if ends else i for i, (_, ends) in zip(ids, batch)]
        joined = np.concatenate(ids)
        if joined.max(initial=0) >= meta["vocab_size"]:
            raise SystemExit(f"token id {joined.max()}, but vocab_size is {meta['vocab_size']}")
        return joined.astype("<u2"), [len(i) for i in ids]

    n_core, waiting, counts, n_token = os.cpu_count() or 1, collections.deque(), [[]], 0
    first = last = time.time()
    with open(path, "wb") as file, ThreadPoolExecutor(n_core) as pool:
        while n_token < limit:
            while len(waiting) < 2 * n_core and (batch := list(itertools.islice(pieces, 64))):
                waiting.append(pool.submit(encode_batch, batch))
            if not waiting:
                break
            ids, count = waiting.popleft().result()
            file.write(ids[:min(len(ids), limit - n_token)])
            n_token += len(ids)
            counts.append(np.array(count, np.uint32))
            if time.time() > last + 10:
                last = time.time()
                print(f"{path}: {n_token:,} tokens, {n_token / (last - first):,.0f}/s", flush=True)
    return np.concatenate(counts).astype(int)


def hash_file(path, opener=open):
    digest = hashlib.sha256()
    with opener(path, "rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_set(folder, name, read, encode, meta, limit, kinds=(), order=()):
    """Both .bin files and meta.json of a data set; pairs of question and answer stay whole."""
    meta = {"dataset": name, **meta, "n_token": {}, "sha256": {}}
    for split, most in (("train", limit), ("val", math.inf)):
        path = os.path.join(folder, f"{split}.bin")
        count = write_tokens(path, read(split), encode, meta, most)
        if kinds:
            count = count.reshape(-1, 2)
            count = count[np.cumsum(count.sum(1)) <= most]
            os.truncate(path, 2 * int(count.sum()))
        meta["n_token"][split], meta["sha256"][split] = os.path.getsize(path) // 2, hash_file(path)
        if not meta["n_token"][split]:
            raise SystemExit(f"{name}: too little text for a training and a validation part")
    if kinds:
        meta.update(types=kinds, val_pairs=[(i, *row) for i, row in zip(order, count.tolist())])
    with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
        json.dump(meta, file)
    print(f"{name}: {meta['n_token']['train']:,} + {meta['n_token']['val']:,} "
          f"{meta['tokenizer']} tokens of {meta['vocab_size']} kinds", flush=True)


def write_pairs(folder, name, members, tokenizer, origin, limit):
    """Question-answer data: every type in folder/type, their mix in folder.

    members: (type, split, (question, answer) pairs). The mix takes one pair of each type per
    turn, in random order. Validation questions that occur in training are left out.
    """
    asked, kinds = {"train": [], "val": []}, set()
    for kind, split, pairs in members:
        kinds.add(kind)
        os.makedirs(os.path.join(folder, kind), exist_ok=True)
        with open(os.path.join(folder, kind, split), "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{question}\n{answer}\n" for question, answer in pairs)
        asked[split].append(np.array([hash(question + "\n") for question, _ in pairs]))
    kinds, (train, val) = sorted(kinds), map(np.concatenate, asked.values())
    again = val[np.isin(val, train)].tolist()
    print(f"{len(again)} validation questions are left out because they occur in training")
    again = set(again)

    def read_type(i, kind, split):
        with open(os.path.join(folder, kind, split), encoding="utf-8", newline="\n") as file:
            for question, answer in zip(file, file):
                if split == "train" or hash(question) not in again:
                    yield i, question[:-1], answer[:-1]

    def mix(split, some):
        rng, types = random.Random(split), [read_type(*row, split) for row in enumerate(some)]
        for turn in itertools.zip_longest(*types):
            yield from filter(None, rng.sample(turn, len(turn)))

    def read(split, some=kinds):
        for _, question, answer in mix(split, some):
            yield f"Question: {question}\nAnswer:", False       # apart, so that no token straddles
            yield f" {answer}", True
    meta, encode = make_tokenizer(tokenizer, read)
    for part, some in [*(("/" + kind, [kind]) for kind in kinds), ("", kinds)]:
        write_set(folder + part, name + part, functools.partial(read, some=some), encode,
                  {**meta, **origin}, limit // len(kinds) if part else limit, some,
                  (i for i, *_ in mix("val", some)))
        train, val = (collections.Counter(row[2] for row in mix(split, some)) for split in asked)
        best = max(train, key=train.get)
        print(f"    {sum(train.values()):,} + {sum(val.values()):,} pairs, the commonest answer, "
              f"{best}, is right in {val[best] / sum(val.values()):.1%}")
    for kind, split in itertools.product(kinds, asked):
        os.remove(os.path.join(folder, kind, split))


def read_text(file, low, high, label, ends=True):
    """Pieces of one text, the bytes low to high of an open file.

    A GPT-2 token never goes on with a blank after anything else, so pieces end before one.
    """
    rest = ""
    while low < high:
        file.seek(low)
        block = file.read(min(2**15, high - low))
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            if error.start < len(block) - 3 or low + len(block) == high:
                raise SystemExit(f"{label}: invalid UTF-8 at byte {low + error.start}") from None
            block = block[:error.start]                 # its character goes on in the next block
            text = block.decode()
        low, rest = low + len(block), rest + text
        found = re.match(r"(?s).*\S(?=[ \n])", rest)
        cut = found.end() if found else len(rest)
        yield rest[:cut], False
        rest = rest[cut:]
    yield rest, ends


def open_texts(paths, ends):
    """read(split) over whole files: train is the first 90 % of all bytes, val the rest."""
    def read(split):
        border = sum(map(os.path.getsize, paths)) * 9 // 10
        for path in paths:
            with open(path, "rb") as file:
                start, size = 3 * (file.read(3) == b"\xef\xbb\xbf"), file.seek(0, os.SEEK_END)
                cut = min(max(border, start), size)
                while start < cut < size and file.seek(cut) and file.read(1)[0] & 0xC0 == 0x80:
                    cut -= 1                            # back to the start of a character
                low, high = (start, cut) if split == "train" else (cut, size)
                if low < high:
                    yield from read_text(file, low, high, path, ends)
            border -= size
    return read


def split_stream(file, mark):
    """Parts of a binary file, each with the mark that ends it, only the last one without."""
    rest = b""
    for block in iter(lambda: file.read(2**20), b""):
        *parts, rest = (rest + block).split(mark)
        yield from (part + mark for part in parts)
    yield rest


# --------------------------------------------------------------------------------------------------
# downloads
# --------------------------------------------------------------------------------------------------
def find_fault(path, size, sha256, magic):
    """Why a file is not the data that it should be, or ""."""
    with open(path, "rb") as file:
        start = file.read(64)
    if not start.startswith(magic) or re.match(rb"\s*<(!doctype|html|\?xml|error)", start, re.I):
        return f"is not the data, it starts with {start[:24]}"
    if size and os.path.getsize(path) != size:
        return f"has {os.path.getsize(path):,} bytes, published are {size:,}"
    if sha256:
        return "" if hash_file(path) == sha256 else "has another sha256 than published"
    try:
        if magic == b"PK\3\4":
            zipfile.ZipFile(path).testzip()
        elif magic == b"\x1f\x8b":
            hash_file(path, gzip.open)                  # reads it all
    except Exception as error:                          # the readers raise half a dozen kinds
        return f"is damaged ({error})"
    return ""


def save(answer, part, size, n_byte):
    """Append an answer to the file `part`, or begin that anew; returns "" or what went wrong."""
    found = re.search(r"(\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    done, whole = map(int, found.groups() if found else (0, answer.headers.get("Content-Length", 0)))
    if size and whole and whole != size:
        return f"has {whole:,} bytes, published are {size:,}"
    answer.raw.enforce_content_length = False           # what came before a cut is kept
    start, goal, first = done, min(whole, n_byte or whole), time.time()
    last = first
    with open(part, "ab" if done else "wb") as file:
        for block in answer.iter_content(2**16):
            done += file.write(block)
            if time.time() > last + 10:
                last = time.time()
                rate = (done - start) / (last - first)
                print(f"{part}: {done / 1e6:.0f} of {goal / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, "
                      f"{max(0, goal - done) / rate:.0f} s left", flush=True)
            if n_byte and done >= n_byte:
                break
    return "" if done >= goal else f"was cut after {done:,} of {goal:,} bytes"


def download(url, part, size, n_byte, retries):
    """Bring url, or its first n_byte bytes, to the file `part`, going on where that ends.

    Returns "" or why it failed.
    """
    for attempt in range(retries + 1):
        have, wait = os.path.getsize(part) if os.path.exists(part) else 0, 2 ** attempt
        if n_byte and have >= n_byte:
            return ""
        headers = {"User-Agent": "nanoSpline prepare.py", "Accept-Encoding": "identity"}
        if have or n_byte:
            headers["Range"] = f"bytes={have}-{n_byte - 1 if n_byte else ''}"
        try:
            with requests.get(url, headers=headers, stream=True, timeout=60) as answer:
                status, kind = answer.status_code, answer.headers.get("Content-Type", "")
                fault = f"answered {status} {answer.reason} {kind}"
                if status == 416:                       # nothing comes after what is here
                    os.remove(part)
                elif status == 429 or status >= 500:
                    told = answer.headers.get("Retry-After", "")
                    wait = min(int(told) if told.isdecimal() else wait, 600)
                elif status not in (200, 206) or "html" in kind:
                    return fault
                else:
                    fault = save(answer, part, size, n_byte)
                    if not fault or "published" in fault:
                        return fault
                    wait = 0
        except requests.RequestException as error:
            fault = type(error).__name__
        if attempt < retries:
            print(f"{url} {fault}; trying again in {wait} s", flush=True)
            time.sleep(wait)
    return fault


def fetch(flags, *urls, size=None, sha256=None, magic=b"", n_byte=None):
    """Path of a verified download, or of a .part file with its first n_byte bytes.

    Kept in data_dir/raw and used again; a mirror that is a folder is read in place.
    """
    mirror, name, faults = flags["mirror"].rstrip("/"), os.path.basename(urls[0]), []
    size, sha256 = (size, sha256) if flags["verify"] or not mirror else (None, None)
    folder = os.path.join(flags["data_dir"], "raw", re.sub(r"\W+", "_", mirror))
    path = os.path.join(mirror if mirror and "://" not in mirror else folder, name)
    if os.path.exists(path):
        if fault := find_fault(path, size, sha256, magic):
            raise SystemExit(f"{path} {fault}; remove it")
        return path
    if mirror and "://" not in mirror:
        raise SystemExit(f"{path} is missing")
    os.makedirs(folder, exist_ok=True)
    part, hub = path + ".part", os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    for url in [f"{mirror}/{name}"] if mirror else urls:
        url = url.replace("https://huggingface.co", hub.rstrip("/"))
        fault = download(url, part, size, n_byte, flags["retries"])
        if not fault:
            prefix = n_byte and os.path.getsize(part) >= n_byte
            fault = find_fault(part, *((None, None) if prefix else (size, sha256)), magic)
            if not fault and not prefix:
                os.replace(part, path)
            if not fault:
                return part if prefix else path
            os.remove(part)
        faults.append(f"{url} {fault}")
    raise SystemExit(f"{'; '.join(faults)}; try again later, or put a copy at {path}")


# --------------------------------------------------------------------------------------------------
# the data sets: one function each, then the table
# --------------------------------------------------------------------------------------------------
def open_files(flags, limit):
    """Your own text: every file of a pattern is a document."""
    paths = [path for path in sorted(glob.glob(flags["files"], recursive=True))
             if os.path.isfile(path) and os.path.getsize(path)]
    if not paths:
        raise SystemExit(f"--files={flags['files']} matches no file that holds anything")
    return open_texts(paths, len(paths) > 1)


def open_shakespeare(flags, limit):
    """One ASCII text of 65 characters."""
    url = "https://raw.githubusercontent.com/"
    return open_texts([fetch(
        flags, url + "karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        url + "jcjohnson/torch-rnn/master/data/tiny-shakespeare.txt", size=1115394,
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")], False)


def open_tinystories(flags, limit):
    """Stories between separators; of the training file only the bytes that limit asks for."""
    paths, url = {}, "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/"
    for split, part, size in (("train", "train", 2227753162), ("val", "valid", 22502601)):
        n_byte = 6 * limit + 2**20 if split == "train" else size
        urls = [f"{url}{revision}/TinyStoriesV2-GPT4-{part}.txt"
                for revision in ("f54c09fd23315a6f9c86f9dc80f725de7d8f9c64", "main")]
        paths[split] = fetch(flags, *urls, size=size, n_byte=n_byte if n_byte < size else None)

    def read(split):
        with open(paths[split], "rb") as file:
            for story in split_stream(file, b"<|endoftext|>"):
                if story.endswith(b"<|endoftext|>") or not paths[split].endswith(".part"):
                    story = story.removesuffix(b"<|endoftext|>").decode().strip()
                    if story:
                        yield story, True
    return read


DIGITS = b"zero one two three four five six seven eight nine".split()
WIKI_RULES = [(re.compile(pattern), text) for pattern, text in (
    (rb"&amp;", b"&"), (rb"&lt;", b"<"), (rb"&gt;", b">"), (rb"<ref[^<]*</ref>", b""),
    (rb"<[^>]*>", b""), (rb"\[http:[^] ]*", b"["), (rb"(?i)\|thumb", b""), (rb"(?i)\|left", b""),
    (rb"(?i)\|right", b""), (rb"(?i)\|\d+px", b""), (rb"(?i)\[\[image:[^\[\]]*\|", b""),
    (rb"(?i)\[\[category:([^|\]]*)[^]]*\]\]", rb"[[\1]]"), (rb"\[\[[a-z-]*:[^\]]*\]\]", b""),
    (rb"\[\[[^|\]]*\|", b"[["), (rb"\{\{[^}]*\}\}", b""), (rb"\{[^}]*\}", b""), (rb"[\[\]]", b""),
    (rb"&[^;]*;", b" "), *((b"%d" % i, b" %s " % word) for i, word in enumerate(DIGITS)),
    (rb"[^A-Za-z]+", b" "))]


def clean_wiki(file):
    """A Wikipedia dump as words of a-z: the filter of text8, record by record up to each ">"."""
    inside = False
    for record in split_stream(file, b">"):
        inside = (inside or b"<text " in record) and b"#redirect" not in record.lower()
        if inside:
            inside = b"</text>" not in record
            record = b" %s " % re.sub(rb"<.*>", b"", record, count=1)
            for pattern, text in WIKI_RULES:
                record = pattern.sub(text, record)
            yield record.lower()[:-1]


def open_enwik8(flags, limit):
    """The filtered text; train is the first 90 %, val the next 5 %, the rest unused."""
    path = fetch(flags, "https://mattmahoney.net/dc/enwik8.zip",
                 "http://mattmahoney.net/dc/enwik8.zip", "https://data.deepai.org/enwik8.zip",
                 size=36445475, magic=b"PK\3\4",
                 sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc")
    with zipfile.ZipFile(path) as archive, archive.open("enwik8") as file:
        text = io.BytesIO(b"".join(clean_wiki(file)))
    size = len(text.getbuffer())
    borders = {"train": (0, size * 90 // 100), "val": (size * 90 // 100, size * 95 // 100)}
    return lambda split: read_text(text, *borders[split], path, False)


def open_csn(language, flags, limit):
    """Functions of one language, read inside the zip; the pickles in it stay untouched."""
    size, sha256 = {
        "java": (1060569153, "05f9204b1808413fab30f0e69229e298f6de4ad468279d53a2aa5797e3a78c17"),
        "python": (940909997, "7223c6460bebfa85697b586da91e47bc5d64790a4d60bba5917106458ab6b40e"),
    }[language]
    hub, commit = "https://huggingface.co/datasets/", "fdc6a9e39575768c27eb8a2a5f702bf846eb4759"
    path = fetch(
        flags, f"{hub}code-search-net/code_search_net/resolve/{commit}/data/{language}.zip",
        f"https://zenodo.org/records/7857872/files/{language}.zip",
        f"{hub}macavaney/codesearchnet-mirror/resolve/main/v2/{language}.zip",
        size=size, sha256=sha256, magic=b"PK\3\4")

    def read(split):
        part = re.compile(f".*_{'train' if split == 'train' else 'valid'}_(\\d+)\\.jsonl\\.gz")
        with zipfile.ZipFile(path) as archive:
            names = filter(part.fullmatch, archive.namelist())
            for name in sorted(names, key=lambda name: int(part.fullmatch(name)[1])):
                for row in gzip.open(archive.open(name)):
                    code = json.loads(row)["code"]      # a lone surrogate becomes "?"
                    yield code.encode("utf-8", "replace").decode(), True
    return read


def open_fineweb(flags, limit):
    """Shards of ids after a header of 1,024 bytes; val is the first 10,485,760 of its shard."""
    if flags["tokenizer"] not in ("", "gpt2"):
        raise SystemExit("fineweb comes as GPT-2 tokens; it has no other --tokenizer")
    url = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main/fineweb"
    shards, magic = {"train": [], "val": []}, np.array([20240520, 1], "<i4").tobytes()
    for split, numbers, need in (("val", [0], 10485760), ("train", range(1, 104), limit)):
        for i in numbers:
            try:
                path = fetch(flags, f"{url}_{split}_{i:06}.bin", magic=magic,
                             size=200001024 if i < 103 else None, n_byte=1024 + 2 * need)
            except SystemExit:
                if i > 1 and flags["mirror"]:
                    break                               # a mirror may hold the first ones only
                raise
            n_token = min(need, os.path.getsize(path) // 2 - 512, np.fromfile(path, "<i4", 3)[2])
            shards[split].append((path, n_token))
            need -= n_token
            if not need:
                break

    def read(split):
        for path, n_token in shards[split]:
            for i in range(0, n_token, 2**15):
                yield np.fromfile(path, "<u2", min(2**15, n_token - i), offset=1024 + 2 * i), False
    return read


def open_math(flags, limit):
    """(type, split, pairs) of the 56 modules, in one pass over the archive."""
    path = fetch(flags, "https://storage.googleapis.com/mathematics-dataset/"
                 "mathematics_dataset-v1.0.tar.gz", size=2333082954, magic=b"\x1f\x8b",
                 sha256="def638343403cb9ed60437d6b684c859dd23b72779f5cc5661b0a31e67c58576")
    splits, n_seen = {f"train-{flags['difficulty']}": "train", "interpolate": "val"}, 0
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            folder, name = member.name.split("/")[-2:] if member.isfile() else ("", "")
            if folder in splits:
                room = 8 * limit / 56 if folder != "interpolate" else math.inf
                lines, pairs = archive.extractfile(member), []
                for question, answer in zip(lines, lines):
                    pairs.append((question.decode().strip(), answer.decode().strip()))
                    room -= len(question) + len(answer)
                    if room < 0:                        # enough for any tokenizer
                        break
                n_seen += 1
                yield name.removesuffix(".txt"), splits[folder], pairs
    if n_seen != 112:
        raise SystemExit(f"{path} holds {n_seen} of 2 x 56 modules; remove it and run again")


def split_docstrings(source):
    """(docstrings, code without them) of a module; a body that holds nothing else becomes pass."""
    lines, docs = source.split("\n"), []
    owners = [node for node in ast.walk(ast.parse(source)) if isinstance(
        node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node, clean=False)]
    for owner in sorted(owners, key=lambda owner: -owner.body[0].lineno):
        doc = owner.body[0]
        rest = (lines[doc.lineno - 1][:doc.col_offset] + "pass" * (len(owner.body) == 1) +
                lines[doc.end_lineno - 1][doc.end_col_offset:])
        lines[doc.lineno - 1:doc.end_lineno] = [rest] if rest.strip() else []
        docs.insert(0, ast.get_docstring(owner).strip())
    return "\n\n".join(docs).strip(), "\n".join(lines).strip()


def open_stdlib(want_code, flags, limit):
    """Python's own library, its code or its docstrings, a document a file; every tenth is val.

    Left out: tests, tables (many digits) and files beyond ASCII.
    """
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings",
                "pydoc_data", "_bundled"}
    documents = []
    for folder, subfolders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = sorted(set(subfolders) - left_out)
        for name in sorted(name for name in names if re.match(r"(?!_sysconfig).*\.py$", name)):
            with open(os.path.join(folder, name), "rb") as file:
                source = file.read().replace(b"\r\n", b"\n")
            if source.isascii() and len(re.findall(rb"[\d\\]", source)) < len(source) / 20:
                documents.append(split_docstrings(source.decode())[want_code])
    documents = list(filter(None, documents))
    return lambda split: ((text, True) for i, text in enumerate(documents)
                          if (split == "val") == (i % 10 == 9))


def ask(rng):
    """One question and answer of each type; numbers of one to three digits, so some are easy."""
    a, b, c = (rng.randint(1, 10 ** rng.randint(1, 3) - 1) for _ in range(3))
    few, k, n = rng.sample(range(-9, 100), rng.randint(3, 4)), rng.randrange(3), rng.randint(2, 15)
    listed, ordered, big, fine = ", ".join(map(str, few)), sorted(few), 100 * a + c, b % 100
    terms = range(fine, fine + 5 * n, n) if c % 2 else range(fine, fine - 5 * n, -n)
    return {
        "algebra__sequence_next_term": (f"Next in {str([*terms[:k + 2]])[1:-1]}?", terms[k + 2]),
        "arithmetic__add_or_sub": rng.choice([(f"What is {a} + {b}?", a + b),
                                              (f"What is {a} - {b}?", a - b)]),
        "comparison__kth_biggest": (f"{('Biggest', 'Second', 'Third')[k]} of {listed}?",
                                    ordered[-1 - k]),
        "comparison__sort": (f"Sort {listed}.", str(ordered)[1:-1]),
        "numbers__div_remainder": (f"Remainder of {big} by {n}?", big % n),
        "numbers__gcd": (f"Gcd of {(a % 25 + 1) * n} and {(c % 25 + 1) * n}?",
                         math.gcd(a % 25 + 1, c % 25 + 1) * n),
        "numbers__place_value": (f"The {('units', 'tens', 'hundreds')[k]} of {big}?",
                                 str(big)[-1 - k]),
        "numbers__round_number": rng.choice([
            (f"Round {big} to tens.", (big + 5) // 10 * 10),
            (f"Round {big} to hundreds.", (big + 50) // 100 * 100)])}


def open_arithmetic(flags, limit):
    """(type, split, pairs); training never has the numbers of a validation question."""
    rng, pairs, held_out = random.Random(0), collections.defaultdict(dict), set()
    for i in range(6500):
        for kind, (question, answer) in ask(rng).items():
            numbers = (kind, *sorted(re.findall(r"-?\d+", question)))
            if i < 250:
                held_out.add(numbers)
            if i < 250 or numbers not in held_out:
                pairs[kind, "val" if i < 250 else "train"][question] = answer
    for (kind, split), rows in pairs.items():       # shuffled, since a draw serves all types
        yield kind, split, rng.sample(list(rows.items()), len(rows))


DATASETS = {    # function, licence, source and size of the download
    "arithmetic": (open_arithmetic, "MIT", "made here"),
    "code": (functools.partial(open_stdlib, True), "PSF-2.0", "Python's library, made here"),
    "prose": (functools.partial(open_stdlib, False), "PSF-2.0", "Python's library, made here"),
    "shakespeare": (open_shakespeare, "public domain", "tinyshakespeare of char-rnn, 1.1 MB"),
    "enwik8": (open_enwik8, "CC BY-SA", "mattmahoney.net, cleaned, 36 MB"),
    "tinystories": (open_tinystories, "CDLA-Sharing-1.0", "TinyStoriesV2-GPT4, 2.2 GB"),
    "csn_java": (functools.partial(open_csn, "java"), "per repository", "CodeSearchNet, 1.1 GB"),
    "csn_python": (functools.partial(open_csn, "python"), "per repository", "CodeSearchNet, 0.9 GB"),
    "fineweb": (open_fineweb, "ODC-By 1.0", "kjj0/fineweb10B-gpt2, 200 MB each 10**8 tokens"),
    "math": (open_math, "Apache-2.0", "mathematics_dataset-v1.0 of DeepMind, 2.3 GB"),
}


# --------------------------------------------------------------------------------------------------
# main
# --------------------------------------------------------------------------------------------------
def find_folder(name, flags):
    """(tokenizer, folder) of a data set; not its default tokenizer, but others are in the name."""
    default = "char" if name in ("arithmetic", "code", "prose") else "gpt2"
    tokenizer = flags["tokenizer"] or default
    folder = name if tokenizer == default else f"{name}_{tokenizer}"
    return tokenizer, os.path.join(flags["data_dir"], folder)


def make(name, flags):
    """Build a data set in a folder beside its place, then move it there in one step."""
    function, licence, source = DATASETS.get(name, (open_files, "your own", flags["files"]))
    tokenizer, folder = find_folder(name, flags)
    temp, limit = f"{folder}.{os.getpid()}.tmp", flags["max_tokens"]
    if limit == FLAGS["max_tokens"] and name in ("fineweb", "math"):
        limit = 10**8
    for path in glob.glob(os.path.join(glob.escape(folder), "*")):
        if os.path.basename(path) not in ("train.bin", "val.bin", "meta.json") and not (
                os.path.exists(os.path.join(path, "meta.json"))):
            raise SystemExit(f"{path} would be lost; move it, or choose another name than {name}")
    for old in glob.glob(glob.escape(folder) + ".*.tmp"):       # of a run that was killed
        if time.time() - max(map(os.path.getmtime, glob.glob(old + "/**", recursive=True))) > 3600:
            shutil.rmtree(old)
    try:
        if tokenizer == "gpt2":
            load_gpt2()
        data = function(flags, limit)
        os.makedirs(temp)
        origin = {"licence": licence, "source": source}
        if callable(data):
            meta, encode = make_tokenizer(tokenizer, data)
            write_set(temp, name, data, encode, {**meta, **origin}, limit)
        else:
            write_pairs(temp, name, data, tokenizer, origin, limit)
        if os.path.exists(folder):
            os.rename(folder, temp + ".old.tmp")
        os.rename(temp, folder)
    except OSError as error:
        raise SystemExit(f"{name}: {error}")
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        shutil.rmtree(temp + ".old.tmp", ignore_errors=True)


def main(argv):
    """Read the name and the flags, check them, then list or make data sets."""
    if "--help" in argv or "-h" in argv:
        return print(__doc__ + configurator.read_section(__file__, "flags"))
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    flags, names = configurator.parse(FLAGS, argv[bool(name):]), [*DATASETS, "all"]
    for flag, allowed in (("tokenizer", ("", "gpt2", "char", "byte")),
                          ("difficulty", ("easy", "medium", "hard"))):
        if flags[flag] not in allowed:
            raise SystemExit(f"--{flag}={flags[flag]}: choose one of {', '.join(allowed)}")
    if flags["max_tokens"] < 1 or flags["retries"] < 0:
        raise SystemExit("--max_tokens must be at least 1 and --retries at least 0")
    if flags["files"] and (name in [*names, "raw", ""] or re.search(r"\W|_(char|byte|gpt2)$", name)):
        raise SystemExit(f"--files: your text cannot have the name {name!r}")
    if name and not flags["files"] and name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.0)[0]
        raise SystemExit(f"unknown data set {name}; did you mean {near}? Own text needs --files=")
    for each in DATASETS if name in ("", "all") else [name]:
        path = os.path.join(find_folder(each, flags)[1], "meta.json")
        if name in ("", "all") and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                print(f"{each:12} is there: {json.load(file)['n_token']}")
        elif name:
            make(each, flags)
        else:
            print("{:12} {:18} {}".format(each, *DATASETS[each][1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
