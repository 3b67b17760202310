#pragma once
/// Functions of the drop-in libibverbs.so.1 for the rest of NUPA: its version script has them as NUPA_PRIVATE.
#include <infiniband/verbs.h>

extern "C" {

/// For rsockets: nupa::CompletionChannel::signal_fd() of the channel. Any thread.
__attribute__((visibility("default"))) int nupa_verbs_signal_descriptor(ibv_comp_channel* channel);

}  // extern "C"
