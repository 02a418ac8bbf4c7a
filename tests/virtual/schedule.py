"""Virtual time and threads of which one runs at a time: a seed decides the order of everything."""

import heapq
import itertools
import math
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace

_MOST_TURNS = 20_000  # at one moment; a world of 8 ranks took 400


class KilledError(BaseException):
    """SIGKILL of a virtual process, raised in its threads: nothing after it happens."""


class Task:
    """One thread of a virtual process. It waits for `ready`, until `due`."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.baton = threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.due = math.inf
        self.killed = False
        self.over = False
        self.crash: BaseException | None = None


class Schedule:
    """Lets one task run at a time. Where none can, time jumps to the next moment at which one can."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.tasks: list[Task] = []
        self._driver = self._current = Task(None)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._idle = 0  # turns since time last passed
        self._problem: BaseException | None = None

    @property
    def rank(self) -> int | None:
        """The rank whose thread runs."""
        return self._current.rank

    @property
    def time(self) -> SimpleNamespace:
        """Stands for the module `time`."""
        return SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now, sleep=self.sleep)

    def start(self, target: Callable[[], None], rank: int | None) -> Task:
        task = Task(rank)
        self.tasks.append(task)
        threading.Thread(target=self._run, args=(task, target), daemon=True).start()
        return task

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function later; it may not wait for anything."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._number), call))

    def wait(self, ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Let others run until `ready`, or for `timeout_s`. Return True where it is ready."""
        task = self._current
        if task.killed:
            raise KilledError
        task.ready, task.due = ready, self.now + timeout_s
        self._hand_over(task)
        if task.killed:
            raise KilledError
        if task is self._driver and self._problem:
            problem, self._problem = self._problem, None
            raise problem
        return ready()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def kill(self, rank: int) -> None:
        """Stop all threads of this rank where they are."""
        for task in self.tasks:
            task.killed |= task.rank == rank

    def end(self) -> None:
        for task in self.tasks:
            task.killed = True
        self._timers.clear()
        self.wait(lambda: not self.tasks)

    def _run(self, task: Task, target: Callable[[], None]) -> None:
        task.baton.acquire()
        try:
            if not task.killed:
                target()
        except KilledError:
            pass
        except BaseException as error:
            task.crash = error
        task.over = True
        self.tasks.remove(task)
        self._give(self._next())

    def _hand_over(self, task: Task) -> None:
        following = self._next()
        if following is not task:
            self._give(following)
            task.baton.acquire()

    def _give(self, task: Task) -> None:
        self._current = task
        task.baton.release()

    def _next(self) -> Task:
        try:
            return self._pick()
        except Exception as error:  # of a timer, or of a predicate: the test's own mistake, raised in the driver
            self._problem = error
            return self._driver

    def _pick(self) -> Task:
        while True:
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            if self._driver.due <= self.now or self._driver.ready():
                return self._driver
            able = [task for task in self.tasks if task.killed or task.due <= self.now or task.ready()]
            if able:
                self._idle += 1
                assert self._idle < _MOST_TURNS, "a task never waits"
                return self.random.choice(able)
            self._idle = 0
            self.now = min([self._driver.due, *(task.due for task in self.tasks), *(timer[0] for timer in self._timers[:1])])
            assert self.now < math.inf, "all tasks wait without an end"
