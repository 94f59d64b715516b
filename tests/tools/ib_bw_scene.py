# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ib-bw share."""
from harness import equal, one_sentence


def fails(scene, args, *words, run=None, results=False):
    """It exits 1 with one sentence, in which the words are, and prints nothing else or results."""
    code, out, err = run(scene, *args) if run else scene.run(*args)
    equal((args, code, bool(out)), (args, 1, results))
    one_sentence(err)
    for word in words:
        assert word in err, err
    return out


def works(done):
    """The output of a run that has to succeed."""
    code, out, err = done
    equal((code, err), (0, ""))
    return out
