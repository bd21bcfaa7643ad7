"""placeholder"""
from __future__ import annotations
from dataclasses import dataclass, asdict
import math
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    value: float; source: str; verdict: str
    def to_json(self): return {**asdict(self), "text": self.describe()}
    def describe(self): return f"{self.source}: {self.value:.4g} ({self.verdict})"
def eq8(*, epsilon, runs, delta_prime):
    return Claim(value=epsilon*math.sqrt(2*runs*math.log(1/delta_prime))+runs*epsilon*math.expm1(epsilon), source="Bao Eq. 8", verdict="pure DP only")
def eq9_corrected(*, acceptable_loss, validation_size, failure_probability, runs, epsilon):
    return Claim(value=epsilon, source="Eq 9", verdict="x")
