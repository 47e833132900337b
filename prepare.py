"""
Turns text into the token files that train.py reads: data/NAME/{train.bin, val.bin, meta.json}.

    python prepare.py                             # lists the data sets and what is there
    python prepare.py all                         # makes them all
    python prepare.py arithmetic                  # made on the spot, no network
    python prepare.py fineweb --max_tokens=1e7    # fetches only the bytes that it needs
    python prepare.py mine --files="notes/**/*.txt" --tokenizer=char

A .bin file is little-endian uint16 without a header. Every document ends with the end mark (in
the fineweb shards it stands before each, as they come); one long text alone has no mark. Text is
UTF-8 whatever the locale and not edited, but for a byte order mark: CRLF stays, "<|endoftext|>"
in a document is text (see README). Of --files each is a document, in the order of their names,
none if empty; train is the first 90 % of all bytes, whole characters.
"""
import ast, codecs, collections, contextlib, difflib, functools, glob, gzip, hashlib, io, itertools
import json, math, os, random, re, shutil, sys, sysconfig, tarfile, tempfile, time, zipfile, zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import requests

import configurator

# --------------------------------------------------------------------------------------------------
# flags: every setting with its default, on the command line --name=value
tokenizer = ""           # gpt2, char, byte; "" is char for the three made here, gpt2 for the rest
max_tokens = 1_000_000_000_000  # training tokens at most; not given: 10**8 of fineweb and math
mirror = ""              # folder or address that holds the downloads by their base names
verify = False           # check the published sizes and hashes behind a mirror too
difficulty = "easy"      # of math: easy, medium, hard
files = ""               # your own text, a pattern such as notes/**/*.txt
retries = 4              # how often each address of a download is tried again
data_dir = os.path.join(os.path.dirname(os.path.realpath(__file__)), "data")  # downloads: raw/

# --------------------------------------------------------------------------------------------------
# token files; read(split) gives (piece, 0 or, at a document's end, 1 + the number of its type)
FLAGS = {k: v for k, v in globals().items() if k[0] != "_" and isinstance(v, (int, str))}

def load_gpt2():
    """tiktoken's GPT-2 encoding; needs two files in its cache folder, or the network."""
    import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:          # whatever the network, a proxy or the cache comes up with
        cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR") or (
            os.path.join(tempfile.gettempdir(), "data-gym-cache"))
        url = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
        wanted = {os.path.join(cache, hashlib.sha1((url + name).encode()).hexdigest()): url + name
                  for name in ("vocab.bpe", "encoder.json")}
        missing = {path: wanted[path] for path in wanted if not os.path.exists(path)} or wanted
        raise SystemExit(f"no GPT-2 vocabulary ({type(error).__name__}); missing or damaged files "
                         f"and where they come from: {missing}") from None

def make_tokenizer(name, read):
    """Its part of meta.json, and a function: (piece, ends) pairs -> all ids, their number each."""
    seen = np.arange(0x110000) < 256 * (name == "byte")
    for piece, _ in itertools.chain(read("train"), read("val")) if name == "char" else ():
        seen[np.frombuffer(piece.encode("utf-32-le"), "<u4")] = True
    table, chars = np.cumsum(seen) - 1, "".join(map(chr, np.flatnonzero(seen)))
    if len(chars) > 2**16 - 1:
        raise SystemExit(f"{len(chars):,} different characters do not fit 16 bits; use --tokenizer="
                         "byte or gpt2")
    n_byte = [1 if name == "byte" else len(char.encode()) for char in chars]
    if name == "gpt2":
        gpt2 = load_gpt2()
        n_byte = [len(gpt2.decode_single_token_bytes(i)) for i in range(50256)]
    marks = {1} if name == "gpt2" else {ends > 0 for _, ends in read("val")}
    if not marks:
        raise SystemExit("too little text: there is none to validate on")
    end_mark = len(n_byte) if any(marks) else None
    n_byte += [0] * (end_mark is not None)
    def encode(group):
        pieces, ends = zip(*group)
        if name == "gpt2":              # the pieces of a shard are ids already
            pieces = [gpt2.encode_to_numpy(piece, disallowed_special=()) if isinstance(piece, str)
                      else piece for piece in pieces]
            ids = np.concatenate(pieces)
        else:
            pieces = [p.encode().decode("latin-1") for p in pieces] if name == "byte" else pieces
            ids = table[np.frombuffer("".join(pieces).encode("utf-32-le"), "<u4")]
        n_id, ends = np.array([len(piece) for piece in pieces]), np.array(ends) > 0
        ids = np.insert(ids, np.cumsum(n_id)[ends], end_mark) if any(ends) else ids
        return ids.astype("<u2"), (n_id + ends).astype(np.uint32)
    meta = {"tokenizer": name, "vocab_size": len(n_byte), "end_mark": end_mark, "bytes_per_token":
            n_byte, "fingerprint": hashlib.sha256(f"{name} {chars}{end_mark}".encode()).hexdigest()}
    return {**meta, "chars": chars} if name == "char" else meta, encode

def write_tokens(path, pieces, encode, limit):
    """Encode pieces on all cores into path, at most `limit` ids; returns their number each."""
    n_core, counts, n_token, first = os.cpu_count() or 1, [[]], 0, time.time()
    groups = iter(lambda: list(itertools.islice(pieces, 256)), [])
    with open(path, "wb") as file, ThreadPoolExecutor(n_core) as pool:
        jobs = (pool.submit(encode, group) for group in groups)
        waiting = collections.deque(itertools.islice(jobs, 2 * n_core))
        while waiting and n_token < limit:
            ids, count = waiting.popleft().result()
            waiting.extend(itertools.islice(jobs, 1))
            file.write(ids[:min(len(ids), limit - n_token)])
            n_token += len(ids)
            counts.append(count)
            if n_token >> 24 > n_token - len(ids) >> 24:
                print(f"{n_token:,} tokens, {n_token / (time.time() - first):,.0f}/s", flush=True)
    return np.concatenate(counts).astype(int)

def hash_file(path, opener=open):
    digest = hashlib.sha256()
    with opener(path, "rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()

def write_set(folder, name, meta, encode, limit, read, kinds=()):
    """Both .bin files and meta.json of a data set; pairs of question and answer stay whole."""
    meta = {"dataset": name, **meta, "n_token": {}, "sha256": {}}
    os.makedirs(folder, exist_ok=True)
    for split, most in (("train", limit), ("val", math.inf)):
        path = os.path.join(folder, f"{split}.bin")
        count = write_tokens(path, read(split), encode, most)
        if kinds:
            count = count.reshape(-1, 2)
            count = count[np.cumsum(count.sum(1)) <= most]
            os.truncate(path, 2 * int(count.sum()))
        meta["n_token"][split], meta["sha256"][split] = os.path.getsize(path) // 2, hash_file(path)
        if not meta["n_token"][split]:
            raise SystemExit(f"{name}: too little text (or --max_tokens) for two parts")
    if kinds:
        order = (ends - 1 for _, ends in read("val") if ends)
        meta.update(types=kinds, val_pairs=[(i, *row) for i, row in zip(order, count.tolist())])
    meta["checksum"] = hashlib.sha256(json.dumps(meta).encode()).hexdigest()     # of all before it
    with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
        json.dump(meta, file)
    print(f"{name}: {meta['tokenizer']} tokens {meta['n_token']} of {meta['vocab_size']} kinds")

def sort_pairs(folder, members):
    """(type, split, pairs) rows -> (subfolder, read, types) of each type and then of their mix."""
    asked, kinds = {"train": [], "val": []}, []
    os.makedirs(folder)
    for kind, split, pairs in members:
        with open(os.path.join(folder, kind + split), "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{question}\n{answer}\n" for question, answer in pairs)
        asked[split].append(np.array([hash(question + "\n") for question, _ in pairs]))
        kinds = sorted({*kinds, kind})
    train, val = map(np.concatenate, asked.values())
    again = set(val[np.isin(val, train)].tolist())
    print(f"{len(again)} validation questions are left out because they occur in training")
    def read_type(i, kind, split):
        with open(os.path.join(folder, kind + split), encoding="utf-8", newline="\n") as file:
            for question, answer in zip(file, file):
                if split == "train" or hash(question) not in again:
                    yield (f"Question: {question[:-1]}\nAnswer:", 0), (f" {answer[:-1]}", i)
    def read(some, split):              # one pair of each type per turn, in random order
        rng, types = random.Random(split), [read_type(*row, split) for row in enumerate(some, 1)]
        for turn in itertools.zip_longest(*types):
            yield from itertools.chain(*sorted(filter(None, turn), key=lambda _: rng.random()))
    return [("/" + kind, functools.partial(read, [kind]), [kind]) for kind in kinds] + [
        ("", functools.partial(read, kinds), kinds)]

def read_text(file, low, high, label, ends):
    """Pieces of one text, the bytes low to high of a file; no GPT-2 token crosses their borders."""
    rest, decoder = "", codecs.getincrementaldecoder("utf-8" if low else "utf-8-sig")()
    while low < high:
        file.seek(low)
        block = file.read(min(2**13, high - low))
        low += len(block)
        try:
            rest += decoder.decode(block, low == high)
        except UnicodeDecodeError as error:
            place = low - len(error.object) + error.start
            raise SystemExit(f"{label}: invalid UTF-8 at byte {place}") from None
        found = re.match(r"(?s).*\S(?=[ \n])", rest)    # a token may begin with a blank, not end so
        cut = found.end() if found else len(rest)
        yield rest[:cut], 0
        rest = rest[cut:]
    yield rest, ends

def open_texts(paths, ends):
    """read(split) over whole files: train is the first 90 % of all bytes, val the rest."""
    def read(split):
        border = sum(map(os.path.getsize, paths)) * 9 // 10
        for path in paths:
            with open(path, "rb") as file:
                size = os.path.getsize(path)
                cut = min(max(border, 0), size)
                while 0 < cut < size and file.seek(cut) and file.read(1)[0] & 0xC0 == 0x80:
                    cut -= 1                            # back to the start of a character
                low, high = (0, cut) if split == "train" else (cut, size)
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

def find_fault(path, size, sha256, magic):
    """Why a file is not the data that it should be, or ""; of sha256 the beginning is enough."""
    with open(path, "rb") as file:
        start = file.read(64)
    if not start.startswith(magic) or re.match(rb"\Z|\s*<(!doctype|html|\?xml|error)", start, re.I):
        return f"is not the data, it starts with {start[:24]}"
    if size and os.path.getsize(path) != size:
        return f"has {os.path.getsize(path):,} bytes, published are {size:,}"
    if sha256:
        return "" if hash_file(path).startswith(sha256) else "has another sha256 than published"
    try:
        if magic == b"PK\3\4":
            bad = zipfile.ZipFile(path).testzip()
            return f"is damaged ({bad})" if bad else ""
        elif magic == b"\x1f\x8b":
            hash_file(path, gzip.open)                  # reads it all
    except Exception as error:                          # the readers raise half a dozen kinds
        return f"is damaged ({error})"
    return ""

def save(answer, part, done, most):
    """Write an answer into the file `part` after `done` bytes, until it has `most` if that is
    given; returns "" or what went wrong."""
    length, start, first = answer.headers.get("Content-Length", ""), done, time.time()
    packed = answer.headers.get("Content-Encoding", "identity") != "identity"   # length of another
    goal = done + int(length if length.isdecimal() and not packed else 0)
    answer.raw.enforce_content_length = False           # what came before a cut is kept
    with open(part, "ab" if done else "wb") as file:
        for block in answer.iter_content(2**16):
            done += file.write(block)
            if done >> 24 > done - len(block) >> 24:
                rate = (done - start) / (time.time() - first)
                left = f", {(goal - done) / rate:.0f} s left" if goal > done else ""
                print(f"{part}: {done:,} bytes, {rate:,.0f}/s{left}", flush=True)
            if most and done >= most:
                return ""
    return "" if done >= goal else f"was cut after {done:,} of {goal:,} bytes"

def download(url, part, n_byte, most, retries):
    """Bring url, or its first n_byte bytes, to `part`, going on where that ends; "" or a fault."""
    seen = "", ""                           # ETag and length of what is here; others start anew
    for attempt in range(retries + 1):
        have, wait = os.path.getsize(part) if os.path.exists(part) else 0, 2 ** attempt
        begin = f"bytes {have}-"
        if n_byte and have >= n_byte:
            return ""
        headers = {"User-Agent": "nanoSpline prepare.py", "Accept-Encoding": "identity",
                   "Range": f"bytes={have}-{n_byte - 1 if n_byte else ''}"}
        headers |= {"If-Range": seen[0]} if seen[0] and have else {}
        try:
            with requests.get(url, headers=headers, stream=True, timeout=60) as answer:
                status, kind = answer.status_code, answer.headers.get("Content-Type", "")
                part_of = answer.headers.get("Content-Range", begin)
                total = part_of.partition("/")[2] or answer.headers.get("Content-Length", "")
                now = answer.headers.get("ETag", ""), total
                fault = f"answered {status} {answer.reason} {kind}"
                if status == 429 or status >= 500:
                    told = answer.headers.get("Retry-After", "")
                    wait = min(int(told) if told.isdecimal() else wait, 600)
                elif not part_of.startswith(begin) or status == 206 and any(
                        all(pair) and len({*pair}) > 1 for pair in zip(seen, now)):
                    os.remove(part)
                    fault, seen = "sent another part or file than was asked for", ("", "")
                elif status in (200, 206) and "html" not in kind:
                    seen = now
                    fault, wait = save(answer, part, have if status == 206 else 0, most), 0
                else:                                   # 416: nothing comes after what is here
                    return "" if status == 416 and have else fault
        except requests.RequestException as error:
            fault = type(error).__name__
        if not fault or attempt == retries:
            return fault
        print(f"{url} {fault}; trying again in {wait} s", flush=True)
        time.sleep(wait)

def fetch(flags, *urls, size=None, sha256=None, magic=b"", n_byte=None, needed=True):
    """Path of a verified file in data_dir/raw or the mirror, or of a .part file of n_byte bytes."""
    mirror, name, faults = flags["mirror"].rstrip("/"), os.path.basename(urls[0]), []
    if n_byte or mirror and not flags["verify"]:
        size = sha256 = None
    most = n_byte or size and size + 1                  # an endless answer ends, and is told
    in_place, hub = mirror and "://" not in mirror, "https://huggingface.co"
    folder = os.path.join(flags["data_dir"], "raw", re.sub(r"\W+", "_", mirror))
    path = os.path.join(mirror if in_place else folder, name)
    if os.path.exists(path):
        if fault := find_fault(path, size, sha256, magic):
            raise SystemExit(f"{path} {fault}; remove it")
        return path
    os.makedirs(folder, exist_ok=True)
    part = path + ".part"
    for url in [] if in_place else [f"{mirror}/{name}"] if mirror else urls:
        url = url.replace(hub, os.environ.get("HF_ENDPOINT", hub).rstrip("/"))
        if not (fault := download(url, part, n_byte, most, flags["retries"])):
            if not (fault := find_fault(part, size, sha256, magic)):
                path = part if n_byte else path
                os.replace(part, path)
                return path
            os.remove(part)
        faults.append(f"{url} {fault}; ")
    if needed or any(" 404 " not in fault for fault in faults):
        missing = f"there is no {path}; " if in_place else "".join(faults)
        raise SystemExit(f"{missing}try again later, or put a copy at {path}")

# --------------------------------------------------------------------------------------------------
# the data sets: one function each, then the table
def open_files(flags, limit):
    """Your own text: every file of a pattern is a document."""
    found = [name := flags["files"]]                    # [ ] may stand in a name
    found = found if os.path.isfile(name) else sorted(glob.glob(name, recursive=True))
    if broken := [path for path in found if not os.path.exists(os.path.realpath(path))]:
        raise SystemExit(f"--files: {broken[0]} is a link to nothing")
    paths = [*dict.fromkeys(os.path.realpath(path) for path in found    # links show one twice
                            if os.path.isfile(path) and os.path.getsize(path))]
    if not paths:
        raise SystemExit(f"--files={flags['files']} matches no file that holds anything")
    return open_texts(paths, int(len(paths) > 1))

def open_shakespeare(flags, limit):
    url = "https://raw.githubusercontent.com/"
    return open_texts([fetch(
        flags, url + "karpathy/char-rnn/master/data/tinyshakespeare/input.txt", url + "jcjohnson/"
        "torch-rnn/master/data/tiny-shakespeare.txt", size=1115394, sha256="86c4e6aa9db7c042")], 0)

def open_tinystories(flags, limit):
    """Stories between separators; of the training file only the bytes that limit asks for."""
    url = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/{}/TinyStoriesV2-GPT4-{}"
    revision, mark = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64", b"<|endoftext|>"
    def read(split):
        name, size, n_byte = ("valid.txt", 22502601, 0) if split == "val" else (
            "train.txt", 2227753162, 6 * limit + 2**20)
        path = fetch(flags, url.format(revision, name), url.format("main", name), size=size,
                     n_byte=n_byte if n_byte < size else 0)
        with open(path, "rb") as file:
            for story in split_stream(file, mark):
                if story.endswith(mark) or not path.endswith(".part"):
                    if story := story.removesuffix(mark).decode().strip():
                        yield story, 1
    return read

DIGITS = b"zero one two three four five six seven eight nine".split()
WIKI_RULES = [(re.compile(pattern), text) for pattern, text in (
    (rb"<.*>", b""), (rb"&amp;", b"&"), (rb"&lt;", b"<"), (rb"&gt;", b">"),
    (rb"<ref[^<]*</ref>", b""), (rb"<[^>]*>", b""), (rb"\[http:[^] ]*", b"["),
    (rb"(?i)\|thumb", b""), (rb"(?i)\|left", b""), (rb"(?i)\|right", b""), (rb"(?i)\|\d+px", b""),
    (rb"(?i)\[\[image:[^\[\]]*\|", b""), (rb"(?i)\[\[category:([^|\]]*)[^]]*\]\]", rb"[[\1]]"),
    (rb"\[\[[a-z-]*:[^\]]*\]\]", b""), (rb"\[\[[^|\]]*\|", b"[["), (rb"\{\{[^}]*\}\}", b""),
    (rb"\{[^}]*\}", b""), (rb"[\[\]]", b""), (rb"&[^;]*;", b" "),
    (rb"\d", lambda digit: b" %s " % DIGITS[int(digit[0])]), (rb"[^A-Za-z]+", b" "))]

def clean_wiki(file):
    """A Wikipedia dump as words of a-z: the filter of text8, record by record up to each ">"."""
    inside = False
    for record in split_stream(file, b">"):
        inside = (inside or b"<text " in record) and b"#redirect" not in record.lower()
        if inside:
            inside, record = b"</text>" not in record, b" %s " % record
            for pattern, text in WIKI_RULES:
                record = pattern.sub(text, record)
            yield record.lower()[:-1]

def open_enwik8(flags, limit):
    """The filtered text; train is the first 90 %, val the next 5 %, the rest unused."""
    path = fetch(flags, "https://mattmahoney.net/dc/enwik8.zip",
                 "http://mattmahoney.net/dc/enwik8.zip", "https://data.deepai.org/enwik8.zip",
                 size=36445475, sha256="547994d9980ebed1", magic=b"PK\3\4")
    with zipfile.ZipFile(path).open("enwik8") as file:
        text = b"".join(clean_wiki(file))
    cuts = {"train": (0, len(text) * 18 // 20), "val": (len(text) * 18 // 20, len(text) * 19 // 20)}
    return lambda split: read_text(io.BytesIO(text), *cuts[split], path, 0)

def open_csn(language, flags, limit):
    """Functions of one language, read inside the zip; the pickles in it stay untouched."""
    size, sha256 = {"java": (1060569153, "05f9204b1808413f"),
                    "python": (940909997, "7223c6460bebfa85")}[language]
    hub, commit = "https://huggingface.co/datasets/", "fdc6a9e39575768c27eb8a2a5f702bf846eb4759"
    path = fetch(
        flags, f"{hub}code-search-net/code_search_net/resolve/{commit}/data/{language}.zip",
        f"https://zenodo.org/records/7857872/files/{language}.zip",
        f"{hub}macavaney/codesearchnet-mirror/resolve/main/v2/{language}.zip",
        size=size, sha256=sha256, magic=b"PK\3\4")
    def read(split):
        part, archive = "/valid/" if split == "val" else "/train/", zipfile.ZipFile(path)
        names = [name for name in archive.namelist() if part in name and name.endswith(".gz")]
        for name in sorted(names, key=lambda name: (len(name), name)):      # 2 before 10
            try:
                for row in gzip.open(archive.open(name)):       # a lone surrogate becomes "?"
                    yield json.loads(row)["code"].encode("utf-8", "replace").decode(), 1
            except (EOFError, zlib.error, OSError, ValueError, LookupError, TypeError,
                    AttributeError) as error:
                raise SystemExit(f"{path} is damaged: {name} should hold lines of JSON with a text "
                                 f"\"code\" ({type(error).__name__}); remove it") from None
    return read

def open_fineweb(flags, limit):
    """Shards of ids after a header of 1,024 bytes; val is the first 10,485,760 of its shard."""
    if flags["tokenizer"] not in ("", "gpt2"):
        raise SystemExit("fineweb comes as GPT-2 tokens; it has no other --tokenizer")
    url = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main/fineweb"
    def read(split):
        need = limit if split == "train" else 10485760
        for i in range(1, 104) if split == "train" else [0]:
            path = need and fetch(flags, f"{url}_{split}_{i:06}.bin", n_byte=1024 + 2 * need,
                                  magic=np.array([20240520, 1], "<i4").tobytes(),
                                  needed=i < 2 or not flags["mirror"])  # that may hold only a few
            if not path:
                return
            n_told, n_there = int(np.fromfile(path, "<i4", 3)[2]), os.path.getsize(path) // 2 - 512
            n_token = min(need, n_told)
            if n_token < 1 or n_there < n_token or n_there > n_told:
                raise SystemExit(f"{path} is damaged: its header tells {n_told:,} tokens, there are"
                                 f" {n_there:,}; remove it")
            for j in range(0, n_token, 2**15):
                ids = np.fromfile(path, "<u2", min(2**15, n_token - j), offset=1024 + 2 * j)
                if ids.max() > 50256:
                    raise SystemExit(f"{path} holds token id {ids.max()}, GPT-2 has 50,257; "
                                     "remove it")
                yield ids, 0
            need -= n_token
    return read

def open_math(flags, limit):
    """(type, split, pairs) of the 56 modules, in one pass over the archive."""
    path = fetch(flags, "https://storage.googleapis.com/mathematics-dataset/mathematics_dataset-"
                 "v1.0.tar.gz", size=2333082954, sha256="def638343403cb9e", magic=b"\x1f\x8b")
    splits, n_seen = {f"train-{flags['difficulty']}": "train", "interpolate": "val"}, 0
    for member in (archive := tarfile.open(path, "r|gz")):
        folder, name = f"/{member.name}".split("/")[-2:]
        if folder in splits:
            n_line = None if folder == "interpolate" else 2 * (limit // 560 + 1)
            lines = itertools.islice(archive.extractfile(member), n_line)   # 10 tokens a pair
            lines = [line.decode().strip() for line in lines]
            if len(lines) % 2 or not all(lines):
                raise SystemExit(f"{path} is damaged: {member.name} should hold pairs of lines, "
                                 "none empty; remove it")
            yield name.removesuffix(".txt"), splits[folder], [*zip(lines[::2], lines[1::2])]
            n_seen += 1
    if n_seen != 112:
        raise SystemExit(f"{path} holds {n_seen} of 2 x 56 modules; remove it and run again")

def split_docstrings(source):
    """(docstrings, code without them) of a module; a body that holds nothing else becomes pass."""
    lines, docs = source.split("\n"), []
    owners = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False):
            docs.append(ast.get_docstring(node))
            first, last, column = (doc := node.body[0]).lineno - 1, doc.end_lineno, doc.col_offset
            lines[first] = None if node.body[1:] else lines[first][:column] + "pass"
            lines[first + 1:last] = [None] * (last - first - 1)
    return "\n\n".join(docs), "\n".join(line for line in lines if line is not None).strip()

def open_stdlib(want_code, flags, limit):
    """Python's own library, its code or its docstrings, a document a file; every tenth is val."""
    root, documents = sysconfig.get_paths()["stdlib"], []
    left_out = re.compile(r"\b((idle_)?tests?|\w+-packages|encodings|pydoc_data|_sysconfig\w+)\b")
    for path in sorted(glob.glob("**/*.py", root_dir=root, recursive=True)):
        with open(os.path.join(root, path), "rb") as file:
            source = b"" if left_out.search(path) else file.read().replace(b"\r\n", b"\n")
        if source.isascii() and len(re.findall(rb"[\d\\]", source)) <= len(source) / 20:  # no table
            documents += filter(None, [split_docstrings(source.decode())[want_code]])
    return lambda split: ((text, 1) for i, text in enumerate(documents)
                          if (split == "val") == (i % 10 == 9))

def open_arithmetic(flags, limit):
    """(type, split, pairs), graded by the number of digits; no numbers of val occur in train."""
    rng, asked, held_out = random.Random(0), collections.defaultdict(dict), set()
    for turn in range(6500):
        a, b, c = (rng.randint(1, 10 ** rng.randint(1, 3) - 1) for _ in range(3))
        few, k, n = rng.sample(range(-9, 100), rng.randint(3, 4)), rng.randrange(3), c % 13 + 2
        big, x, y, unit = 100 * a + c, a % 25 + 1, b % 25 + 1, (10, 100)[c % 2]
        terms, listed = [b % 100 + i * (n, -n)[a % 2] for i in range(5)], str(few)[1:-1]
        place, rank = ("units", "tens", "hundreds")[k], ("Biggest", "Second", "Third")[k]
        for kind, question, answer in [
            ("algebra__sequence_next_term", f"Next in {str(terms[:k + 2])[1:-1]}?", terms[k + 2]),
            ("arithmetic__add_or_sub", f"What is {a} {'+-'[c % 2]} {b}?", a + (b, -b)[c % 2]),
            ("comparison__kth_biggest", f"{rank} of {listed}?", sorted(few)[-1 - k]),
            ("comparison__sort", f"Sort {listed}.", str(sorted(few))[1:-1]),
            ("numbers__div_remainder", f"Remainder of {big} by {n}?", big % n),
            ("numbers__gcd", f"Gcd of {x * n} and {y * n}?", math.gcd(x, y) * n),
            ("numbers__place_value", f"The {place} of {big}?", str(big)[-1 - k]),
            ("numbers__round_number", f"Round {big} to {unit}s.", (big + unit // 2) // unit * unit)
        ]:
            numbers = (kind, *sorted(re.findall(r"-?\d+", question)))
            held_out.update([numbers] * (turn < 250))
            if turn < 250 or numbers not in held_out:
                asked[kind, "val" if turn < 250 else "train"][question] = answer
    for (kind, split), pairs in asked.items():          # shuffled, since a turn serves all types
        yield kind, split, rng.sample(list(pairs.items()), len(pairs))

DATASETS = {    # function, licence, source and size of the download
    "arithmetic": (open_arithmetic, "MIT", "made here"),
    "code": (functools.partial(open_stdlib, True), "PSF-2.0", "Python's library, made here"),
    "prose": (functools.partial(open_stdlib, False), "PSF-2.0", "Python's library, made here"),
    "shakespeare": (open_shakespeare, "public domain", "tinyshakespeare of char-rnn, 1.1 MB"),
    "enwik8": (open_enwik8, "CC BY-SA", "mattmahoney.net, cleaned, 36 MB"),
    "tinystories": (open_tinystories, "CDLA-Sharing-1.0", "TinyStoriesV2-GPT4, 2.2 GB"),
    "csn_java": (functools.partial(open_csn, "java"), "per function", "CodeSearchNet, 1.1 GB"),
    "csn_python": (functools.partial(open_csn, "python"), "per function", "CodeSearchNet, 0.9 GB"),
    "fineweb": (open_fineweb, "ODC-By 1.0", "kjj0/fineweb10B-gpt2, 200 MB per 10**8 tokens"),
    "math": (open_math, "Apache-2.0", "mathematics_dataset-v1.0 of DeepMind, 2.3 GB")}

def make(name, flags):
    """Build a data set in a folder beside its place, then move it there in one step."""
    function, licence, source = DATASETS.get(
        name, (open_files, "your own", os.path.abspath(flags["files"])))
    default = "char" if name in ("arithmetic", "code", "prose") else "gpt2"
    tokenizer = flags["tokenizer"] or default
    folder = os.path.join(flags["data_dir"], name + f"_{tokenizer}" * (tokenizer != default))
    folder = os.path.realpath(folder)                   # what a link points to is made anew
    is_huge = name in ("fineweb", "math") and flags["max_tokens"] == FLAGS["max_tokens"]
    temp, limit = f"{folder}.{os.getpid()}.tmp", 10**8 if is_huge else flags["max_tokens"]
    meta_path = os.path.join(folder, "meta.json")
    if os.path.exists(folder) and not os.path.exists(meta_path):
        raise SystemExit(f"{folder} is there and no data set; choose another name than {name}")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(meta_path) as file:
        before = json.load(file)["source"]
        own = flags["files"] or before not in [row[2] for row in DATASETS.values()]
        if own and before != source:
            raise SystemExit(f"{folder} was made of {before}; choose another name or remove it")
    try:
        if tokenizer == "gpt2":
            load_gpt2()                                 # before any work
        data = function(flags, limit)
        sets = [("", data)] if callable(data) else sort_pairs(temp + ".pairs", data)
        meta, encode = make_tokenizer(tokenizer, sets[-1][1])
        meta.update(licence=licence, source=source)
        for part, *rest in sets:
            write_set(temp + part, name + part, meta, encode,
                      limit // (len(sets) - 1) if part else limit, *rest)
        if os.path.exists(folder):
            os.rename(folder, temp + ".old")
        os.rename(temp, folder)
    except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        rest = "; free space, or choose another --data_dir or name" * bool(
            getattr(error, "errno", 0)) or f" {getattr(error, 'object', '')[:80]}"
        raise SystemExit(f"{folder}: {error}{rest}") from error
    finally:
        for path in glob.glob(glob.escape(folder) + ".*.tmp*"):     # also of a run that was killed
            if path.startswith(temp) or time.time() - os.path.getmtime(path) > 86400:
                shutil.rmtree(path, ignore_errors=True)

def main(argv):
    """Read the name and the flags, check them, then list or make data sets."""
    if "--help" in argv or "-h" in argv:
        return print(__doc__ + configurator.read_section(__file__, "flags"))
    name = " ".join(arg for arg in argv if arg[:1] != "-" and "=" not in arg)
    flags = configurator.parse(FLAGS, [arg for arg in argv if arg[:1] == "-" or "=" in arg])
    flags["data_dir"] = flags["data_dir"] or FLAGS["data_dir"]
    for flag, right in (("tokenizer", ("", "gpt2", "char", "byte")), ("retries", range(100)), (
            "difficulty", ("easy", "medium", "hard")), ("max_tokens", range(1, 10**15))):
        if flags[flag] not in right:
            raise SystemExit(f"--{flag}={flags[flag]} is not in {right}")
    if flags["files"] and (name in ["all", "raw", *DATASETS] or not re.fullmatch(r"[\w-]+", name)):
        raise SystemExit(f"--files: your text cannot have the name {name!r}, but any of letters, "
                         "digits, _ and - that is not among: " + ", ".join(["all", *DATASETS]))
    if not flags["files"] and name not in ["", "all", *DATASETS]:
        near = difflib.get_close_matches(name.split("/")[0], [*DATASETS, "all"], 1, 0.0)[0]
        raise SystemExit(f"unknown data set {name}; did you mean {near}? Own text needs --files=")
    for each in DATASETS if name in ("", "all") else [name]:
        row = "{:12} {:17} {}".format(each, *DATASETS.get(each, [""] * 3)[1:])
        make(each, flags) if name else print(row)
    there = glob.glob(os.path.join(glob.escape(flags["data_dir"]), "*", "meta.json"))
    print("there are:", *sorted(map(os.path.dirname, there)), sep="\n    ")

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except OSError as error:                            # output is full or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(f"stopped: {error}") from None
