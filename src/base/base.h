// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Basics that every other folder may use and that depend on none of them: errors with text, the log, clocks and time
/// codes, settings, descriptors, addresses, CRC, ordered copies, and reads of memory that may be unmapped. Any thread,
/// unless a header states otherwise.
#include "base/boot_id.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/fence.h"
#include "base/gid.h"
#include "base/gid_text.h"
#include "base/log.h"
#include "base/lowest_descriptor.h"
#include "base/memory_fault.h"
#include "base/ordered_copy.h"
#include "base/own_addresses.h"
#include "base/piece.h"
#include "base/prefetch.h"
#include "base/private_send_flag.h"
#include "base/random_seed.h"
#include "base/recent.h"
#include "base/settings.h"
#include "base/settings_table.h"
#include "base/shared_file.h"
#include "base/system_error.h"
#include "base/time_code.h"
#include "base/unique_fd.h"
#include "base/zeroed_array.h"
