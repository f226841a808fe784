"""Exact token counts, for who needs more than the estimate: a `Tokenizer` for OpenAI's encodings, without a network.

It needs the extra `tokens`. Models of other makers have other encodings; the count is then a good estimate, no more.
"""

import warnings

from agentflow.errors import ConfigError
from agentflow.models.base import Tokenizer

# The models that came before o200k_base have the encoding that their name begins with here.
_OLDER = {"gpt-4o": "o200k_base", "gpt-4.1": "o200k_base", "gpt-4.5": "o200k_base", "gpt-4": "cl100k_base"}
_OLDER |= {"gpt-3.5": "cl100k_base", "text-embedding-": "cl100k_base"}
_NEWEST = "o200k_base"


def bpe_tokenizer(model: str = "") -> Tokenizer:
    """A function from a text to the number of its tokens for `model`, a name with or without its provider.

    Special tokens in the text count as the text they are. Raises `ConfigError` if the extra is not installed.
    """
    name = model.rpartition("/")[2]
    encoding_name = next((_OLDER[start] for start in _OLDER if name.startswith(start)), _NEWEST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its data in an old way
        try:
            import bpe_openai  # an optional dependency
        except ImportError as error:
            raise ConfigError("counting tokens exactly needs an extra: pip install 'agentflow-rx[tokens]'") from error
        encoding = bpe_openai.get_encoding(encoding_name)

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count
