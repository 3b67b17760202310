import subprocess
from pairs import finish, outcome
import time
time.sleep(1)
outcome(True, 'one')
time.sleep(1)
outcome(True, 'one')
time.sleep(1)
outcome(True, 'one')
time.sleep(1)
outcome(True, 'one')
time.sleep(1)
outcome(True, 'one')
finish()
