# SPDX-License-Identifier: Apache-2.0
from nupa import main

main()
