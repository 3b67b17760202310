#pragma once
/// Where the ranks of a job find each other, once, before there is a communicator: the launcher that started them
/// (PMIx, PyTorch, `nupa launch`), a port, a file, or a unique id that the program carries. Each rank gives an opaque
/// card and gets those of all. The C functions that make a communicator use it, and `nupa launch`, which links this
/// folder without the rest of the collectives. Any thread; a rendezvous server has a thread of its own.
#include "ccl/bootstrap/launcher.h"
#include "ccl/bootstrap/place.h"
#include "ccl/bootstrap/rendezvous.h"
#include "ccl/bootstrap/roots.h"
