// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How the ranks of a job find each other before they have a communicator: by the launcher that started them (PMIx,
/// PyTorch, `nupa launch`), a port, a file, or a unique id that the program passes on. Each rank sends its peer info,
/// which is opaque here, and receives that of all ranks. The C functions that make a communicator use this folder, and
/// so does `nupa launch`, which links it without the rest of the collectives. Thread-safe; each rendezvous server has
/// its own thread.
#include "ccl/bootstrap/launcher.h"
#include "ccl/bootstrap/rendezvous_address.h"
#include "ccl/bootstrap/rendezvous.h"
#include "ccl/bootstrap/kept_servers.h"
