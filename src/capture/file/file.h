// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The capture file: frames as Wireshark shows them, their order, and the pcapng format. For the command that captures;
/// the libraries do not have it. One thread.
#include "capture/file/frame.h"
#include "capture/file/pcapng.h"
