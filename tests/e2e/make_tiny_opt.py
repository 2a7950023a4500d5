"""Makes a tiny OPT model folder that a real vLLM serves: `python make_tiny_opt.py FOLDER`.

Random weights from a fixed seed, a byte-level BPE tokenizer, 1.6 MB. Run with a Python that has transformers,
tokenizers and torch, such as the one of the vLLM environment; the development environment has none of them,
so they are imported by name where they are used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

VOCAB_SIZE = 512
HIDDEN_SIZE = 128
HEADS = 2
"""128 / 2: vLLM's CPU attention fails every request when the head dimension is 16."""
LAYERS = 2
FFN_SIZE = 256
POSITIONS = 512
BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"
SPECIAL = [BOS, PAD, EOS, UNK]
CORPUS = [
    "The head serves and the followers run headless.",
    "A benchmark is a test: it passes, fails, or says which part broke.",
    "Twelve nodes were asked for, eleven came, and none was left behind.",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 32 64 128 256 512 1024",
]


def write_tokenizer(folder: Path) -> None:
    """Writes a byte-level BPE tokenizer of VOCAB_SIZE entries; no text is out of its vocabulary."""
    tokenizers = import_module("tokenizers")
    decoders, models = import_module("tokenizers.decoders"), import_module("tokenizers.models")
    pre_tokenizers, trainers = (
        import_module("tokenizers.pre_tokenizers"),
        import_module("tokenizers.trainers"),
    )

    bpe = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    # A corpus this small yields fewer merges than asked for. The rest of the vocabulary is filled, so that
    # every id below VOCAB_SIZE, from which the client's random prompts are drawn, decodes to text.
    bpe.add_tokens([f"w{number}" for number in range(VOCAB_SIZE - bpe.get_vocab_size())])
    import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        model_max_length=POSITIONS,
    ).save_pretrained(folder)


def write_model(folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors."""
    transformers = import_module("transformers")
    import_module("torch").manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        word_embed_proj_dim=HIDDEN_SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_dim=FFN_SIZE,
        max_position_embeddings=POSITIONS,
        bos_token_id=SPECIAL.index(BOS),
        pad_token_id=SPECIAL.index(PAD),
        eos_token_id=SPECIAL.index(EOS),
    )
    transformers.OPTForCausalLM(config).save_pretrained(folder)


def main(argv: list[str]) -> int:
    """Makes the folder named by the only argument; returns 0, or 2 for bad usage."""
    if len(argv) != 1:
        print("usage: make_tiny_opt.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_model(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
