"""What authors of tools with undo import: `State` is declared, `States` and `Checkpoint` say what is stored."""

from defserve.protocols.mcpl.state.binding import State
from defserve.protocols.mcpl.state.states import States
from defserve.protocols.mcpl.vocabulary import CannotUndo, CheckpointNotFound
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint

__all__ = ["CannotUndo", "Checkpoint", "CheckpointNotFound", "State", "States"]
