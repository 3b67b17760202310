// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Copy engines: copies between addresses of this process that do not use the processor of the program's thread. The
/// shm transport gives them the data of large requests. choice.h makes the engine that the settings name. Any thread.
/// The design is docs/design/copy-engines.md.
#include "copy/choice.h"
#include "copy/copy_engine.h"
