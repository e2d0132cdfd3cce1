"""Policy files that change while requests are decided: checked, swapped as a whole, and the last good ones kept."""

from __future__ import annotations

from outrider.errors import PolicyError
from outrider.policy.decide import PolicySet
from outrider.policy.learning import Learner
from outrider.policy.loader import Source, digest_of, load_policies


class PolicyFiles:
    """The policies in force. A caller that keeps `current` for one request sees one version throughout."""

    def __init__(self, source: Source, learner: Learner | None = None) -> None:
        """PolicyError when the files are wrong: there is no last good version yet."""
        self.source = source
        self.learner = learner or Learner()
        self.digest = digest_of(source)
        """Of the files in force; changes exactly when their bytes do."""
        self.current: PolicySet = load_policies(source, self.learner)
        self.problem: str | None = None
        """Why the files as they are now are not in force; None when they are."""

    def reload(self) -> bool:
        """Read the files anew when they have changed; False when they are wrong, and the last good ones stay."""
        digest = digest_of(self.source)
        if digest == self.digest:
            self.problem = None
            return True
        try:
            policies = load_policies(self.source, self.learner)
        except PolicyError as error:
            self.problem = error.message
            return False
        self.current, self.digest, self.problem = policies, digest, None
        return True
