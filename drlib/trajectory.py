"""temporary"""
from __future__ import annotations
from dataclasses import dataclass, field
from enum import StrEnum, IntEnum
import numpy as np, pickle
class Termination(StrEnum):
    ANSWERED="answered"; LENGTH="length"; TURNS="turns"; WALL_CLOCK="wall_clock"; FORMAT="format"; LOOP="loop"; ENV_FAULT="env_fault"
class Segment(IntEnum): PROMPT=0; THINK=1; TOOL_CALL=2; TOOL_RESPONSE=3; ANSWER=4; REPORT=5; TEMPLATE=6
@dataclass
class ToolResult:
    tool: str; arguments: dict; text: str; ok: bool; error: str; latency_s: float; attempts: int; source: str; cache_hit: bool; degraded: bool; env_fault: bool
@dataclass
class Trajectory:
    id: str; task_id: str; group_id: str; world_version: str; policy_version: int
    token_ids: np.ndarray; generated: np.ndarray; logprobs: np.ndarray; entropies: np.ndarray; segments: np.ndarray; turns: np.ndarray; versions: np.ndarray
    routed_experts: object; tool_results: list; termination: Termination; answer: str|None; reward: float|None; reward_parts: dict; messages: list; metadata: dict
def save_trajectories(path, ts): pickle.dump(ts, open(path, "wb"))
def load_trajectories(path): return pickle.load(open(path, "rb"))
