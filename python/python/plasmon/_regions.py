"""Regions: memory with a name, which lives on one node and which programs of all hosts read and write."""

from __future__ import annotations

import pwd
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from plasmon import _internal
from plasmon._arguments import one_of, shown, whole
from plasmon._closing import Closing
from plasmon._handle import Handle
from plasmon._internal import ObjectId
from plasmon._subscription import RegionEvents
from plasmon._terms import Terms
from plasmon.errors import InvalidArgument, TimedOut, WrongType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

Mode = Literal["r", "w", "rw"]
"""Rights of a handle: to read the region, to change it, or both."""
Access = Literal["", "r", "rw"]
"""Rights of every user."""

EVERYONE = "everyone"
"""Stands for every user where a user is named."""
_LETTERS = {"r": "r", "rw": "rw", "master": "rwm"}


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """Region as it is now: a row of `Client.regions`."""

    name: str
    """Name of the region."""
    size: int
    """Size in bytes."""
    home: str
    """Id of the node on which the region lives."""
    owner: int
    """User id of the region's owner."""
    rights: str
    """Rights of the user who asks: letters of "rwm", for read, write and master."""
    public: str
    """Rights of every user."""
    mappable: bool
    """Whether processes of the owner on the home may map the region."""
    crowded_out: bool
    """Whether processes of the owner were to map the region and cannot, because the home had no memory
    left that they may map."""
    pieces: int
    """Number of places of the home's memory in which the region lies."""
    ephemeral: bool
    """Whether the region ends with the client that made it."""
    handles: int
    """Number of handles that clients of the home have."""
    nodes: int
    """Number of other nodes on which clients have handles."""
    age: float
    """Time in seconds since the region was made on this home."""


class Region(_internal.RegionHandle, Closing):
    """Named memory that lives on one node, its home, and that programs of all hosts read and write.

    `Client.create_region` and `Client.map_region` give regions out. A region used as a context manager gives
    its handle up at the end of the block; the region itself stays until `free`. Any number of threads may use
    a handle. Offsets and sizes are in bytes.

    On the host where it lives, and for its owner, a region is mapped (`local`): operations are loads and
    stores, without any call, and `view` and `array` give its memory out. Otherwise each operation is a call.

    Every operation has a `timeout` in seconds. `OutcomeUnknown` says that a change may have been made, or may
    be made later. After any other error nothing was changed, except for a part of more than 320 bytes.
    """

    _client: Handle
    _name: str

    @property
    def name(self) -> str:
        """Name of the region, as the client names it."""
        return self._name

    def array(
        self, dtype: DTypeLike = "u1", shape: int | tuple[int, ...] = -1, offset: int = 0
    ) -> np.ndarray[Any, Any]:
        """NumPy array over the region's memory, writable unless the mode is "r".

        Others read and write the same memory. A change does not wake those who `wait` for it: `notify` does.

        Args:
            dtype: Type of the elements.
            shape: Shape of the array; -1 stands for as many elements as there are up to the end.
            offset: Offset of the first byte.

        Raises:
            NotHere: The region lives on another host, or cannot be mapped by this user.
            InvalidArgument: The array does not fit the region, or has elements that are Python objects.
        """
        import numpy as np

        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongType(f"{shown(dtype)} is no type of elements: {error}") from None
        if not kind.itemsize:
            raise InvalidArgument(f"elements of {kind} have no bytes")
        offset = whole(offset, "the offset of the first byte", 0, self.size)
        if kind.hasobject:
            raise InvalidArgument(f"a region holds bytes, and {kind} has elements that are Python objects")
        memory = self.view()
        try:
            flat = np.frombuffer(memory[offset:], dtype=np.uint8)
            if isinstance(shape, int) and shape == -1:
                flat = flat[: len(flat) - len(flat) % kind.itemsize]
                return flat.view(kind)
            return np.ndarray(shape, kind, flat)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(
                f"no array of {kind} and shape {shown(shape)} is at offset {offset} of region "
                f"{self.name!r}: {error}"
            ) from None

    def grant(self, user: int | str, mode: Literal["r", "rw", "master"], *, timeout: float = 30) -> None:
        """Gives a user rights beside those that the user has. At most 64 users have rights.

        Args:
            user: User id, name of a user of this host, or `"everyone"`.
            mode: To read ("r"), to read and write ("rw"), or also to grant, revoke, move and free ("master").
            timeout: Time in seconds that the call may take.

        Raises:
            NotAllowed: This user has not the rights of a master.
        """
        mode = one_of(mode, _LETTERS, "a user gets 'r', 'rw' or 'master'")
        self.give(user_id(user), _LETTERS[mode], timeout)

    def revoke(self, user: int | str, *, timeout: float = 30) -> None:
        """Takes all rights from a user. The owner and root keep theirs.

        Args:
            user: User id, name of a user of this host, or `"everyone"` for what every user has.
            timeout: Time in seconds that the call may take.

        Raises:
            NotAllowed: This user has not the rights of a master.
        """
        self.withdraw(user_id(user), timeout)

    def move(self, node: str, *, timeout: float = 60) -> None:
        """Moves the region to another node. Operations wait meanwhile, and go on there.

        Args:
            node: Node: its id or the id's first characters, at least 6; the "HOST:PORT" where it listens; or
                the name or address of its host.
            timeout: Time in seconds that the move may take.

        Raises:
            NotAllowed: This user has not the rights of a master.
            StoreFull: The node has no room. The region stays where it is.
        """
        self.move_to(self._client._native, node, timeout)

    def snapshot(self, *, name: str | None = None, replicas: int = 1, timeout: float = 30) -> ObjectId:
        """Makes an object of the region's bytes, and returns its id.

        Calls that change the region wait while it is copied; programs that write its memory do not.

        Args:
            name: Name of the object; by default it has none.
            replicas: Number of nodes that keep the object.
            timeout: Time in seconds that the call may take.
        """
        id, known = self._client._identify(None, name, False)
        terms = Terms(known, "r", timeout, False, name is None, replicas, None)
        return self.copy_to(id, terms, timeout)

    def info(self, *, timeout: float = 30) -> RegionInfo:
        """Describes the region as it is now.

        Args:
            timeout: Time in seconds that the call may take.
        """
        return _info(self.describe(timeout))

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.mode or "no rights"
        return f"<plasmon.Region {self.name!r} of {self.size} bytes, {state}>"


class Regions(Handle):
    """Calls of a client about regions."""

    def create_region(
        self,
        name: str,
        size: int,
        *,
        node: str | None = None,
        public: Access = "",
        mappable: bool = True,
        ephemeral: bool = False,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> Region:
        """Makes a named region of `size` bytes, zeroed, on this node or another.

        The region lives until `Region.free`, or as long as this client if it is ephemeral, or until its node
        ends.

        Args:
            name: Name of the region, which is unique in the cluster.
            size: Size in bytes, at least 1.
            node: Node on which the region is to live, as in `migrate`; by default the one of this host.
            public: Rights of every user: none, "r" or "rw".
            mappable: Whether processes of the region's host may map it.
            ephemeral: Whether the region ends with this client.
            exist_ok: Whether a region of this name and size, of this user, is mapped instead.
            timeout: Time in seconds that the call may take, including the wait for room.

        Raises:
            ObjectExists: There is a region of this name.
            StoreFull: The node has no room.
        """
        public = one_of(public, ("", "r", "rw"), "every user gets no right (''), 'r' or 'rw'")
        size = whole(size, "the size of a region in bytes", 1, (1 << 64) - 1)
        making = (size, node, public, mappable, ephemeral, exist_ok)
        return self._map(name, "rw", None, timeout, making)

    def map_region(
        self, name: str, mode: Mode = "r", *, owner: int | str | None = None, timeout: float = 0
    ) -> Region:
        """A handle to a region, with the rights that `mode` says.

        Args:
            name: Name of the region.
            mode: Rights of the handle: "r" to read, "w" to change, "rw" for both.
            owner: User to whom the region has to belong, by id or name; by default this user or root.
            timeout: Time in seconds to wait for the region to be made.

        Raises:
            ObjectNotFound: There is no such region.
            NotAllowed: This user lacks one of the rights.
            RegionLost: The node on which the region lived is gone.
            TimedOut: A node did not answer.
        """
        mode = one_of(mode, ("r", "w", "rw"), "a region is mapped with mode 'r', 'w' or 'rw'")
        return self._map(name, mode, None if owner is None else user_id(owner), timeout, None)

    def regions(self) -> list[RegionInfo]:
        """Lists the regions of the cluster that this user may see, by their names.

        A client with a namespace lists those that have a name in it, by their names there.

        Raises:
            TimedOut: A node did not answer.
        """
        rows, missing = _internal.regions(self._connected())
        if missing:
            why = "; ".join(f"node {node}: {reason}" for node, reason in missing)
            raise TimedOut(f"the list lacks what lives on these nodes: {why}")
        here = len(self._prefix)
        found = (_info(row) for row in rows if row[0].startswith(self._prefix))
        return [replace(info, name=info.name[here:]) for info in found]

    def region_events(self) -> RegionEvents:
        """Tells what happens to the regions to which this client has handles, or will have.

        A region that was freed or lost, or has moved, before the call is told too, if this client has a
        handle to it. Other events are those from then on; several handles to a region give one event. No
        event is lost silently: where some are missing, there is a gap.

        Raises:
            Busy: This client has 16 such iterators already.
        """
        return RegionEvents(_internal.RegionEvents(self._connected()), self._prefix)

    def _map(
        self,
        name: str,
        rights: str,
        owner: int | None,
        timeout: float | None,
        making: tuple[int, str | None, str, bool, bool, bool] | None,
    ) -> Region:
        region = Region(self._connected(), self._full(name, "a region"), rights, owner, timeout, making)
        region._client, region._name = self, name
        return region


def _info(row: _internal.RegionRow) -> RegionInfo:
    name, size, home, owner, rights, public, lies, ephemeral, handles, nodes, age = row
    return RegionInfo(name, size, home, owner, rights, public, *lies, ephemeral, handles, nodes, age)


def user_id(user: int | str) -> int | None:
    """User id of a user. `None` for every user."""
    if not isinstance(user, str):
        return whole(user, "the id of a user", 0, (1 << 32) - 1)
    if user == EVERYONE:
        return None
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise InvalidArgument(f"this host has no user {shown(user)}: give the user's id") from None
