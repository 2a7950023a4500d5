"""HTTP questions to a server, each bounded; no answer is an answer (None)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import requests

__all__ = ["HttpProbe", "Probe"]


class Probe(Protocol):
    """What readiness and provenance ask of a server at a base URL."""

    def healthy(self, url: str) -> bool:
        """``/health`` answers 200."""
        ...

    def models(self, url: str) -> list[str] | None:
        """The ids of ``/v1/models``, None without a usable answer."""
        ...

    def completes(self, url: str, model: str, timeout: float, chat: bool = False) -> str | None:
        """One short completion: None when it succeeded, else what went wrong."""
        ...

    def version(self, url: str) -> str | None:
        """``/version``."""
        ...

    def metrics(self, url: str) -> str | None:
        """The text of ``/metrics``."""
        ...

    def reset_prefix_cache(self, url: str) -> bool:
        """True when the server offers ``/reset_prefix_cache`` and did it."""
        ...


class HttpProbe:
    """Real HTTP without proxies: the cluster's nodes are never behind the login node's proxy."""

    def __init__(self, timeout: float = 5.0) -> None:
        self.timeout = timeout
        self._session: requests.Session | None = None

    def healthy(self, url: str) -> bool:
        """``/health`` answers 200."""
        answer = self._get(f"{url}/health")
        return answer is not None and answer.status_code == 200

    def models(self, url: str) -> list[str] | None:
        """The ids of ``/v1/models``."""
        body = self._json(self._get(f"{url}/v1/models"))
        if not isinstance(body, dict) or not isinstance(body.get("data"), list):
            return None
        return [str(entry["id"]) for entry in body["data"] if isinstance(entry, dict) and "id" in entry]

    def completes(self, url: str, model: str, timeout: float, chat: bool = False) -> str | None:
        """One completion of one token; the chat endpoint when the load uses it."""
        import requests

        body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0.0}
        if chat:
            body["messages"] = [{"role": "user", "content": "1"}]
        else:
            body["prompt"] = "1"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        try:
            answer = self._http().post(f"{url}{path}", json=body, timeout=(self.timeout, timeout))
        except requests.RequestException as err:
            return f"{type(err).__name__} after at most {timeout:.0f} s"
        if answer.status_code != 200:
            return f"HTTP {answer.status_code}: {answer.text[:500]}"
        return None

    def version(self, url: str) -> str | None:
        """``/version``."""
        body = self._json(self._get(f"{url}/version"))
        return str(body["version"]) if isinstance(body, dict) and "version" in body else None

    def metrics(self, url: str) -> str | None:
        """The text of ``/metrics``."""
        answer = self._get(f"{url}/metrics")
        return answer.text if answer is not None and answer.status_code == 200 else None

    def reset_prefix_cache(self, url: str) -> bool:
        """Needs ``VLLM_SERVER_DEV_MODE=1`` on the server; False otherwise."""
        import requests

        try:
            answer = self._http().post(f"{url}/reset_prefix_cache", timeout=self.timeout)
        except requests.RequestException:
            return False
        return answer.status_code == 200

    def _http(self) -> requests.Session:
        if self._session is None:
            import requests

            self._session = requests.Session()
            self._session.trust_env = False
        return self._session

    def _get(self, url: str) -> requests.Response | None:
        import requests

        try:
            return self._http().get(url, timeout=self.timeout)
        except requests.RequestException:
            return None

    @staticmethod
    def _json(answer: requests.Response | None) -> Any:
        if answer is None or answer.status_code != 200:
            return None
        try:
            return answer.json()
        except ValueError:
            return None
